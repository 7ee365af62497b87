from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.report.words import Scale, add_up, clean, duration, ratio, share, size, to_ascii

MILLISECONDS = Scale("ms", 1_000_000, 1)


def test_parts_by_largest_remainder() -> None:
    # 0.14 + 0.24 + 0.34 + 0.28 = 1.00 ms: floors 0.1 0.2 0.3 0.2 leave two ticks, for remainders .08 and the first .04
    assert add_up([140_000, 240_000, 340_000, 280_000], MILLISECONDS) == ["0.2", "0.2", "0.3", "0.3"]


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=8), st.sampled_from([1e3, 5e6, 5e7, 5e11]))
def test_shown_parts_add_up_to_the_shown_whole(parts: list[int], whole_ns: float) -> None:
    scale = Scale.of(whole_ns)
    shown = add_up(parts, scale)
    assert sum(Fraction(s) for s in shown) == Fraction(
        scale.format(scale.tick_ns * round_half_up(sum(parts), scale.tick_ns))
    )
    for part, text in zip(parts, shown, strict=True):
        assert abs(Fraction(part) - Fraction(text) * scale.unit_ns) < scale.tick_ns


def round_half_up(total: int, tick: int) -> int:
    return (2 * total + tick) // (2 * tick)


@pytest.mark.parametrize(
    ("whole_ns", "unit", "shown"),
    [(6_400, "µs", "6.4"), (2_490_000, "ms", "2.490"), (244_500_000, "ms", "244.5"), (250e9, "s", "250.0")],
)
def test_unit_follows_the_whole(whole_ns: float, unit: str, shown: str) -> None:
    scale = Scale.of(whole_ns)
    assert (scale.unit, scale.format(whole_ns)) == (unit, shown)


def test_single_figures() -> None:
    assert [duration(n) for n in (0, 999, 1_500, 2_500_000, 3e9)] == ["0 ns", "999 ns", "1.5 µs", "2.5 ms", "3.00 s"]
    assert [size(n) for n in (12, 4_000, 403e6, 2.5e9)] == ["12 B", "4.0 kB", "403 MB", "2.5 GB"]
    assert [share(1, 3), share(1, 1000), share(0, 5), share(5, 0)] == ["33 %", "<1 %", "0 %", "0 %"]
    assert [ratio(x) for x in (None, 0.0, 0.634, 0.999, 1.0)] == ["–", "0.00", "0.63", "0.99", "1.00"]


def test_nothing_that_steers_a_terminal_survives() -> None:
    hostile = "a\x1b[31mb\rc\nd\x9be\u202ef\u2028g\x00h\ud800i"
    assert clean(hostile) == "a�[31mb�c�d�e�f�g�h�i"
    assert clean("矩阵乘法 <kernel>") == "矩阵乘法 <kernel>"
    assert len(clean("x" * 100_000)) == 400


@given(st.text(alphabet=st.characters(codec=None)))
def test_cleaned_text_is_printable_and_encodable(text: str) -> None:
    cleaned = clean(text)
    cleaned.encode("utf-8")
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in cleaned)


def test_ascii_keeps_the_length() -> None:
    text = "5 µs · 2×3 ÷ 4 ± 1 – 矩…"
    assert to_ascii(text) == "5 us - 2x3 / 4 ~ 1 - ?~"
    assert len(to_ascii(text)) == len(text)
