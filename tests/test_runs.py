import pytest

from tracekit.runs import few_runs, runs


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([4], "4"),
        ([0, 1, 2, 3], "0-3"),
        ([0, 1, 2, 7, 9, 10], "0-2, 7, 9-10"),
        ([0, 2, 4, 6, 8, 10, 12, 14], "0, 2, 4, 6, 8, 10, 12, 14"),
        ([0, 2, 4, 6, 8, 10, 12, 14, 16], "0, 2, 4, 6, ..., 12, 14, 16"),
    ],
)
def test_few_runs(numbers, text):
    assert few_runs(numbers) == text


def test_runs_are_in_order_and_all_there():
    assert runs([11, 2, 3, 4, 0, 3]) == "0, 2-4, 11"
    assert runs(range(0, 40, 2)) == ", ".join(map(str, range(0, 40, 2)))
