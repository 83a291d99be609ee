"""Files that survive crashes: atomic writes, journals, schemas, canonical JSON, digests.

May import only `hwnas.errors`.
"""

from hwnas.io.atomic import write_atomic, write_folder_atomic
from hwnas.io.canonical import canonical_json, digest, digest_file, parse_json
from hwnas.io.journal import Journal, read_journal
from hwnas.io.schema import Schema, is_ours, read_json, write_json
from hwnas.io.tensors import read_tensor, read_tensors, write_tensors

__all__ = [
    "Journal",
    "Schema",
    "canonical_json",
    "digest",
    "digest_file",
    "is_ours",
    "parse_json",
    "read_journal",
    "read_json",
    "read_tensor",
    "read_tensors",
    "write_atomic",
    "write_folder_atomic",
    "write_json",
    "write_tensors",
]
