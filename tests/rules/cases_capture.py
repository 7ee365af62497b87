"""What captures lack: TK9xx."""

from __future__ import annotations

from nsys_builder import GRAPH
from small_captures import case, us


@case({"TK901": None, "TK902": None}, ("TK100",))
def neither_steps_nor_communication(job):
    job.rank().run("gemm", 0, 1000)


@case({"TK903": None}, ("TK902",))
def an_opaque_graph(job):
    rank = job.rank()
    rank.run("gemm", 0, 500)
    rank.run("gather", 300, 700)
    rank.export.op(GRAPH, us(500), us(1000), call=(us(495), us(499)), graphId=1, graphExecId=2, device=0)
    rank.occupied["compute"].update(range(500, 1000))


@case({"TK907": None}, ("TK401", "TK101"))
def no_launch_rows(job):
    rank = job.rank()
    rank.run("gemm", 0, 400, launched=False)
    rank.run("gather", 300, 500, launched=False)
    rank.run("gemm", 500, 1000, launched=False)


@case({}, ("TK901", "TK902", "TK907", "TK905", "TK903"))
def a_clean_capture(job):
    for rank in (job.rank(), job.rank()):
        for step in (1, 2, 3):
            t = 1000 * step
            rank.step(step, t - 8, t + 900)
            rank.run("gemm", t, t + 1000, at=t - 5)
            rank.run("reduce", t + 500, t + 600, at=t)
