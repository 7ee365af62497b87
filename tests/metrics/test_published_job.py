"""Two real jobs published with a paper on stragglers, replayed by the same core: the paper's own numbers come out."""

import json

import pytest

pd = pytest.importorskip("pandas")
from pipeline_job import step_times  # noqa: E402

pytestmark = pytest.mark.shared


@pytest.mark.parametrize(("job", "slowdown"), [("AR", 1.9730), ("ST", 1.1787)])
def test_the_slowdown_by_stragglers(shared, job, slowdown):
    """S, the step time over the ideal one, within 2 %; each step's own replay within 1 % of the published one."""
    folder = shared / "traces/stragglers"
    ops = pd.read_parquet(folder / f"trace-{job}.parquet")
    now, ideal = step_times(ops).T
    assert now.mean() / ideal.mean() == pytest.approx(slowdown, rel=0.02)
    published = json.loads((folder / f"result-{job}.json").read_text())
    assert published["blocking_slowdown"] == pytest.approx(slowdown, abs=0.00005)
    by_step = [published["step_t_nodelay"][str(step)] for step in sorted(ops.step.unique())]
    assert now.tolist() == pytest.approx(by_step, rel=0.01)
    assert ideal.tolist() == pytest.approx(list(published["step_t_noblk"].values()), rel=0.01)
