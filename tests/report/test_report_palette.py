"""Contrast after WCAG 2.1: relative luminance of sRGB, (lighter + 0.05) / (darker + 0.05)."""

from __future__ import annotations

from itertools import combinations

import pytest

from tracekit.report.causes import FAMILIES
from tracekit.report.palette import STATIC, palette, stylesheet

THEMES = ("light", "dark")
MARKS = ("compute", "wait", "order", "comm", "copy", "host", "idle")
KERNELS = ("matmul", "attention", "other")
Rgb = tuple[float, float, float]

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
SIGHT = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def linear(colour: str) -> Rgb:
    values = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values)
    return r, g, b


def contrast(a: str, b: str) -> float:
    low, high = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in map(linear, (a, b)))
    return (high + 0.05) / (low + 0.05)


def oklab(rgb: Rgb) -> Rgb:
    r, g, b = rgb
    long = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3)
    medium = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3)
    short = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * medium - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * medium + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * medium - 0.8086757660 * short,
    )


def seen_distance(a: str, b: str, sight: str) -> float:
    points = []
    for colour in (a, b):
        rgb = linear(colour)
        seen = [min(1.0, max(0.0, sum(m * c for m, c in zip(row, rgb, strict=True)))) for row in SIGHT[sight]]
        points.append(oklab((seen[0], seen[1], seen[2])))
    return 100 * sum((x - y) ** 2 for x, y in zip(*points, strict=True)) ** 0.5


def test_the_formula_itself() -> None:
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.005)  # the known grey that just fails


@pytest.mark.parametrize("theme", THEMES)
def test_text_has_four_and_a_half_to_one(theme: str) -> None:
    colours = palette()[theme]
    for ink in ("ink", "ink2", "ink3", "link", "error", "warning", "info"):
        for ground in ("page", "card", "inset"):
            assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)


@pytest.mark.parametrize("theme", THEMES)
def test_marks_have_three_to_one(theme: str) -> None:
    colours = palette()[theme]
    for mark in MARKS:
        for ground in ("card", "lane"):
            assert contrast(colours[mark], colours[ground]) >= 3, (mark, ground)


@pytest.mark.parametrize("theme", THEMES)
def test_labels_on_marks_have_four_and_a_half_to_one(theme: str) -> None:
    colours = palette()[theme]
    for mark in ("pale", *KERNELS, "wait", "order", "comm", "copy", "host"):
        assert contrast(colours[f"on-{mark}"], colours[mark]) >= 4.5, mark


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("theme", THEMES)
def test_no_two_families_look_alike(theme: str, sight: str) -> None:
    colours = palette()[theme]
    for a, b in combinations(("compute", "wait", "order", "comm", "copy", "host"), 2):
        assert seen_distance(colours[a], colours[b], sight) >= 8.9, (a, b)


def test_every_role_in_both_themes_and_in_the_style_sheet() -> None:
    assert palette()["light"].keys() == palette()["dark"].keys()
    assert {family.key for family in FAMILIES} == set(MARKS)
    style = stylesheet()
    assert style.index("color-scheme:light") < style.index("@media screen")
    used = set()
    for name in ("style.css", "timeline.css", "timeline/paint.js"):
        text = (STATIC / name).read_text("utf-8")
        used |= {part.split(")")[0] for part in text.split("var(--")[1:]}
    assert used <= palette()["light"].keys()
