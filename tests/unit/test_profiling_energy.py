import pytest

from hwnas.profiling.energy import counters, counters_problem, energy_per_run_mj
from hwnas.profiling.throughput import shares_of


class Processor:
    """A folder as the kernel shows it, whose counter rises with each run."""

    def __init__(self, root, *, start=0, range_uj=10**9):
        self.range_uj = range_uj
        self.seconds = 0.0
        self.files = []
        for number in range(2):
            folder = root / f"intel-rapl:{number}"
            folder.mkdir()
            (folder / "name").write_text(f"package-{number}\n")
            (folder / "energy_uj").write_text(str(start))
            (folder / "max_energy_range_uj").write_text(str(range_uj))
            self.files.append(folder / "energy_uj")
        # A part of the first package, and what is around all: not to be added.
        for place, name in (("intel-rapl:0:0", "core"), ("intel-rapl:2", "psys")):
            folder = root / place
            folder.mkdir()
            (folder / "name").write_text(f"{name}\n")
            (folder / "energy_uj").write_text("5")
            (folder / "max_energy_range_uj").write_text("9")

    def run(self):
        self.seconds += 0.1
        for file in self.files:
            file.write_text(str((int(file.read_text()) + 2000) % (self.range_uj + 1)))


def test_the_energy_of_all_packages_is_divided_by_the_runs(tmp_path):
    processor = Processor(tmp_path)
    assert len(counters(tmp_path)) == 2
    used = energy_per_run_mj(processor.run, root=tmp_path, clock=lambda: processor.seconds)
    assert used == pytest.approx(4.0)


def test_a_counter_that_wraps_around(tmp_path):
    processor = Processor(tmp_path, start=9_000, range_uj=10_000)
    once = energy_per_run_mj(
        processor.run, seconds=0.05, root=tmp_path, clock=lambda: processor.seconds
    )
    assert once == pytest.approx(4.0)


def test_without_counters_there_is_no_energy(tmp_path):
    assert energy_per_run_mj(lambda: None, root=tmp_path) is None
    assert energy_per_run_mj(lambda: None, root=tmp_path / "none") is None
    assert "shows no counters" in counters_problem(tmp_path)


def test_why_there_is_no_energy_is_told(tmp_path):
    processor = Processor(tmp_path)
    assert counters_problem(tmp_path) is None
    for file in processor.files:  # as it is where it may not be read
        file.unlink()
        file.mkdir()
    assert "may not read" in counters_problem(tmp_path)


def test_a_counter_that_goes_away_costs_the_energy_alone(tmp_path):
    processor = Processor(tmp_path)

    def run():
        for file in processor.files:
            file.unlink(missing_ok=True)
        processor.seconds += 1.0

    assert energy_per_run_mj(run, root=tmp_path, clock=lambda: processor.seconds) is None


def test_each_worker_gets_its_own_cores():
    assert shares_of([3, 1, 0, 2], workers=2, threads=1) == [[3], [1]]
    assert shares_of([3, 1, 0, 2], workers=2, threads=2) == [[3, 1], [0, 2]]
    assert shares_of([0], workers=2, threads=1) == [[], []]
