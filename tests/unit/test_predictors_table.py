"""Tables as files, new devices, and what to measure next."""

import numpy as np
import pytest

from hwnas.errors import UsageError
from hwnas.predictors import (
    Measured,
    Predictor,
    fit_table,
    most_uncertain,
    read_table,
    spearman,
    stratified,
    transfer,
)

HEADER = ["gene:a", "gene:b", "gene:c", "cost:macs", "lat", "note"]


def lines(count, seed=0):
    rng = np.random.default_rng(seed)
    genes = rng.integers(0, 3, (count, 3)).astype(float)
    macs = genes @ [1.0, 2.0, 4.0] + 1.0
    lat = (3.0 + macs) * (1.0 + 0.01 * rng.normal(size=count))
    return np.column_stack([genes, macs, lat, np.ones(count)]).tolist()


def write(path, rows, header=HEADER):
    text = [",".join(header), *(",".join(str(cell) for cell in row) for row in rows)]
    path.write_text("\n".join(text) + "\n")
    return path


def test_a_table_is_read_by_prefix(tmp_path):
    table = read_table(write(tmp_path / "t.csv", lines(4)))
    assert table.gene_names == ("a", "b", "c")
    assert table.cost_names == ("macs",)
    assert table.target_names == ("lat", "note")
    assert table.genes.shape == (4, 3)
    assert table.target("note").tolist() == [1.0] * 4


def test_fit_table(tmp_path):
    train = write(tmp_path / "train.csv", lines(60))
    swapped = [[row[1], row[0], *row[2:]] for row in lines(200, seed=1)]
    test = write(tmp_path / "test.csv", swapped, ["gene:b", "gene:a", *HEADER[2:]])
    found = fit_table(train, test, "lat")
    assert set(found) == {
        *("mape", "within_5", "within_10", "spearman", "kendall"),
        *("coverage_90", "width_90", "fit_cpu_s", "rows"),
    }
    assert found["mape"] < 1.5
    assert found["spearman"] > 0.95
    assert found["rows"] == 60


def broken(row, column, cell):
    rows = lines(30)
    rows[row - 1][column] = cell
    return rows


@pytest.mark.parametrize(
    ("rows", "header", "target", "message"),
    [
        (broken(3, 4, "nan"), HEADER, "lat", "row 3, column 'lat': nan is not a finite number"),
        (broken(7, 3, "fast"), HEADER, "lat", "row 7, column 'cost:macs': 'fast' is not a number"),
        (broken(2, 0, ""), HEADER, "lat", "row 2, column 'gene:a': an empty cell is not a number"),
        (lines(30), HEADER, "note", "target 'note' is 1 in every row"),
        (lines(6), HEADER, "lat", "6 rows, at least 10 are needed"),
        (lines(30), HEADER, "latt", "unknown target 'latt'; did you mean lat"),
        (lines(30), [*HEADER[:4], "lat", "lat"], "lat", "column 'lat' appears twice"),
        (lines(30), list("abcdef"), "a", "no column begins with 'gene:' or 'cost:'"),
        ([*lines(30), [1.0]], HEADER, "lat", "row 31: 1 cells, the header has 6"),
    ],
)
def test_bad_tables_are_named_in_one_line(tmp_path, rows, header, target, message):
    train = write(tmp_path / "train.csv", rows, header)
    with pytest.raises(UsageError) as caught:
        fit_table(train, train, target)
    assert message in caught.value.message
    assert "\n" not in caught.value.message


def test_columns_of_the_two_tables_must_agree(tmp_path):
    train = write(tmp_path / "train.csv", lines(30))
    more = write(tmp_path / "m.csv", lines(30), [*HEADER[:3], "cost:other", *HEADER[4:]])
    with pytest.raises(UsageError, match="unknown column 'cost:other'"):
        fit_table(train, more, "lat")
    fewer = write(tmp_path / "f.csv", [row[1:] for row in lines(30)], HEADER[1:])
    with pytest.raises(UsageError, match=r"column 'gene:a' of .* is missing"):
        fit_table(train, fewer, "lat")
    with pytest.raises(UsageError, match="no such file"):
        read_table(tmp_path / "nothing.csv")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(UsageError, match="empty"):
        read_table(tmp_path / "empty.csv")


def devices(count, seed=0):
    rng = np.random.default_rng(seed)
    sources = np.exp(rng.normal(size=(count, 1)) * 0.4 + rng.normal(size=(count, 3)) * 0.1)
    y = (2.0 * sources[:, 0] + 5.0 * sources[:, 1]) * (1.0 + 0.02 * rng.normal(size=count))
    return sources, y


def test_a_new_device_from_a_few_measurements():
    sources, y = devices(15)
    fitted = transfer(sources, y)
    others, truth = devices(1000, seed=1)
    mean, low, high = fitted.predict(others)
    assert spearman(mean, truth) > 0.98
    assert np.abs(mean / truth - 1.0).mean() < 0.05
    assert ((truth >= low) & (truth <= high)).mean() > 0.75
    single = [spearman(others[:, d], truth) for d in range(3)]
    assert spearman(mean, truth) > max(single)


def test_transfer_says_what_is_wrong():
    sources, y = devices(15)
    with pytest.raises(UsageError, match="4 rows, at least 5"):
        transfer(sources[:4], y[:4])
    with pytest.raises(UsageError, match="expected positive"):
        transfer(-sources, y)
    with pytest.raises(UsageError, match=r"level 1\.5 is not a share"):
        transfer(sources, y).predict(sources, level=1.5)
    with pytest.raises(UsageError, match="a measurement is"):
        transfer(sources, y - y.max())
    with pytest.raises(UsageError, match="2 devices, fitted on 3"):
        transfer(sources, y).predict(sources[:, :2])


def test_stratified_takes_one_of_every_range():
    values = np.random.default_rng(0).permutation(100).astype(float)
    picks = stratified(values, 10, np.random.default_rng(1))
    assert sorted(values[picks] // 10) == list(range(10))
    assert len(stratified(values, 100, np.random.default_rng(1))) == 100
    with pytest.raises(UsageError, match="101 of 100"):
        stratified(values, 101, np.random.default_rng(1))


def test_most_uncertain_goes_where_nothing_was_measured():
    rng = np.random.default_rng(0)
    genes = rng.integers(0, 2, (40, 6)).astype(float)
    genes[0] = 3.0  # the only row with the value 3
    costs = genes.sum(axis=1, keepdims=True)
    y = (5.0 + costs[:, 0]) * (1.0 + 0.01 * rng.normal(size=40))
    predictor = Predictor.fit(genes, costs, y)
    near = rng.integers(0, 2, (30, 6)).astype(float)
    far = rng.integers(0, 2, (10, 6)) * 3.0
    candidates = np.vstack([near, far])
    price = candidates.sum(axis=1, keepdims=True)
    seen = Measured(genes=genes, costs=costs)
    picks = most_uncertain(
        predictor, candidates, price, 6, measured=seen, rng=np.random.default_rng(0)
    )
    assert len(set(picks.tolist())) == 6
    assert (picks >= 30).sum() >= 4
    with pytest.raises(UsageError, match="41 of 40"):
        most_uncertain(predictor, candidates, price, 41, measured=seen, rng=rng)
