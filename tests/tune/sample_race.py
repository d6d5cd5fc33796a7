"""A finished race with hostile names."""

from __future__ import annotations

from torchyard.core.comparison import Accuracy, AccuracyStatus, Interval
from torchyard.core.study import Target, Variant, Workload
from torchyard.tune.model import Choice, Contender, Missing, Race, RaceRound, Share, Space, Standing

HOSTILE = "<script>alert(1)</script>"
TC = Choice(
    dimension="allocator", name="tcmalloc", about="another allocator", preload=("/lib/libtc.so",)
)
ONE = Choice(dimension="threads", name="one-thread", about=HOSTILE, threads=1)
INF = Choice(
    dimension="gradients",
    name="inference-mode",
    about="no bookkeeping",
    options=(("inference-mode", True),),
    code="with torch.inference_mode():",
)
BAD = Choice(dimension="compiler", name="broken", about="fails", backend="nothing")


def standing(name: str, speedup: float, launches: int, width: float = 0.02) -> Standing:
    return Standing(
        contender=name,
        speedup=speedup,
        interval=Interval(low=speedup - width, high=speedup + width) if launches > 1 else None,
        p_value=0.01 if launches > 1 else None,
        launches=launches,
    )


def sample_race() -> Race:
    """Two choices have won together; one failed, one was slower."""
    winner = Contender().with_choice(TC).with_choice(INF)
    alone = [Contender().with_choice(one) for one in (TC, ONE, INF, BAD)]
    failed = Standing(contender="broken", state="failed", why=f"cannot-build (check): {HOSTILE}")
    return Race(
        workload=Workload(suite="kernels", name="mlp", batch_size=4),
        default=Variant(name="default", target=Target(name="here", python="python")),
        space=Space(
            name="small",
            choices=(TC, ONE, INF, BAD),
            missing=(
                Missing(
                    dimension="allocator",
                    name="jemalloc",
                    why="there is no libjemalloc.so.2 here",
                    package="libjemalloc2",
                ),
            ),
        ),
        alpha=0.05,
        budget_s=300.0,
        contenders=(Contender(), *alone, winner),
        heats=(
            RaceRound(
                number=0,
                stage="glance",
                against="default",
                contenders=("tcmalloc", "one-thread", "inference-mode", "broken"),
                run="heats/000",
                ended_s=20.0,
                found=(
                    standing("tcmalloc", 1.2, 1),
                    standing("one-thread", 0.7, 1),
                    standing("inference-mode", 1.05, 1),
                    failed,
                ),
            ),
            RaceRound(
                number=1,
                stage="single",
                against="default",
                contenders=("tcmalloc", "inference-mode"),
                run="heats/001",
                ended_s=60.0,
                found=(standing("tcmalloc", 1.22, 3), standing("inference-mode", 1.06, 3)),
            ),
        ),
        shares=(
            Share(
                choice="tcmalloc",
                speedup=1.21,
                interval=Interval(low=1.18, high=1.24),
                p_adjusted=0.001,
                kept=True,
            ),
            Share(
                choice="inference-mode",
                speedup=1.05,
                interval=Interval(low=1.02, high=1.08),
                p_adjusted=0.01,
                kept=True,
            ),
        ),
        winner=winner,
        proposed=winner,
        confirmed=Standing(
            contender=winner.name,
            speedup=1.28,
            interval=Interval(low=1.25, high=1.31),
            p_value=1e-5,
            launches=8,
            accuracy=Accuracy(status=AccuracyStatus.PASS),
        ),
        default_ns=12.8e6,
        winner_ns=10.0e6,
        elapsed_s=290.0,
        state="finished",
        untried=("other",),
    )


def race_without_winner() -> Race:
    """The proposal did not hold on new launches."""
    from dataclasses import replace

    race = sample_race()
    proposed = Contender().with_choice(TC)
    return replace(
        race,
        winner=None,
        proposed=proposed,
        shares=(),
        confirmed=Standing(
            contender="tcmalloc",
            speedup=1.004,
            interval=Interval(low=0.99, high=1.018),
            p_value=0.4,
            launches=6,
        ),
    )
