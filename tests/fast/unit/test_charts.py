"""Facts about the geometry of the charts, and about the colours that they are drawn in."""

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_redislock.admin.charts import (
    GUTTER,
    THINNEST,
    Scale,
    Span,
    bars,
    columns,
    fitted,
    share,
    ticks,
)
from django_redislock.admin.timeline import scale_of
from tests.colours import contrast
from tests.tools import ROOT

NOON = datetime(2024, 5, 17, 12, tzinfo=UTC)
HOUR = Scale(NOON, NOON + timedelta(hours=1))


def span(start, end, what="released", weight=0):
    """From one minute after noon to another."""
    return Span(
        NOON + timedelta(minutes=start), NOON + timedelta(minutes=end), what, weight=weight
    )


# Bars


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([(15, 45)], [(25, 50 - GUTTER)]),
        ([(-30, 6), (54, 90)], [(0, 10 - GUTTER), (90, 10 - GUTTER)]),
        ([(-9, -1), (61, 70)], []),
        ([(30, 30)], [(50, THINNEST)]),
        ([(60, 60)], [(100 - THINNEST, THINNEST)]),
        ([(0, 12), (12, 24)], [(0, 20 - GUTTER), (20, 20 - GUTTER)]),
        ([(0, 30), (6, 12), (15, 45)], [(0, 75 - GUTTER)]),
    ],
)
def test_bars_lie_where_their_times_are(times, expected):
    found = bars([span(*each) for each in times], HOUR)

    assert [(bar.x, pytest.approx(bar.width)) for bar in found] == expected


def test_one_bar_for_several_has_the_colour_of_most_and_the_mark_of_the_weightiest():
    several = [span(n / 100, n / 100, "lost" if n == 3 else "released", n == 3) for n in range(9)]

    [bar] = bars(several, HOUR, gap=5)

    assert (bar.what, bar.weightiest) == ("released", several[3])


def test_what_is_running_is_never_one_bar_with_what_is_over():
    running = Span(NOON + timedelta(minutes=30), HOUR.end, "held", is_running=True)
    over = [span(29.9, 30), span(10, 40)]

    before, now = bars([running, *over], HOUR, gap=100)

    assert set(before.spans) == set(over)
    assert now.spans == (running,)
    assert (now.what, now.x) == ("held", 50)


def test_a_busy_row_takes_nothing_from_the_others():
    quiet = [span(n * 10, n * 10 + 5) for n in range(6)]
    busy = [span(n / 100, n / 100 + 0.001) for n in range(6000)]

    first, second = fitted([quiet, busy], HOUR, most=60)

    assert len(first) == 6
    assert 1 <= len(second) <= 54
    assert sum(len(bar.spans) for bar in second) == 6000


minutes = st.floats(-10, 70, allow_nan=False)
spans = st.builds(lambda a, b: span(min(a, b), max(a, b)), minutes, minutes)


@given(st.lists(st.lists(spans, max_size=40), max_size=12), st.integers(0, 50))
def test_bars_are_few_within_the_chart_in_order_and_complete(rows, most):
    drawn = fitted(rows, HOUR, most)

    assert sum(map(len, drawn)) <= max(most, len(rows))
    for row, found in zip(rows, drawn, strict=True):
        assert sum(len(bar.spans) for bar in found) == len(list(filter(HOUR.shows, row)))
        assert all(0 <= bar.x < bar.end <= 100.01 for bar in found)
        assert all(left.end <= right.x + 0.01 for left, right in pairwise(found))


# Times


@given(st.floats(0.5, 90 * 86400), st.floats(0, 365 * 86400))
def test_times_are_few_round_and_in_order(seconds, since):
    start = NOON + timedelta(seconds=since)
    found = ticks(Scale(start, start + timedelta(seconds=seconds)), ZoneInfo("Asia/Kolkata"))

    assert len(found) <= 8
    assert all(left.x < right.x for left, right in pairwise(found))
    assert all(0 <= tick.x <= 100 and not tick.at.microsecond for tick in found)


@given(st.floats(0, 1), st.floats(0, 10))
def test_even_the_shortest_timeline_has_a_time(since, seconds):
    start = NOON + timedelta(seconds=since)
    now = start + timedelta(seconds=seconds)

    assert ticks(scale_of([Span(start, now, "held")], now), UTC)


BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("zone", "start", "minutes", "expected"),
    [
        (ZoneInfo("Asia/Kolkata"), "2024-05-17T12:06:30Z", 5, "17:37 17:38 17:39 17:40 17:41"),
        (ZoneInfo("Asia/Kolkata"), "2024-05-17T12:06:30Z", 15, "17:40 17:45 17:50"),
        (BERLIN, "2024-03-31T00:00Z", 180, "01:00 01:30 03:00 03:30 04:00 04:30 05:00"),
        (BERLIN, "2026-10-25T01:00Z", 60, "02:00 02:10 02:20 02:30 02:40 02:50 03:00"),
        (BERLIN, "2026-10-25T01:30Z", 15, "02:30 02:35 02:40 02:45"),
        (BERLIN, "2026-10-25T00:30Z", 60, "02:30 02:40 02:50 02:00 02:10 02:20 02:30"),
        (BERLIN, "2026-10-25T00:59Z", 2, "02:59 02:59 02:00 02:00 02:01"),
        (BERLIN, "2026-10-25T00:00Z", 180, "02:00 02:30 02:00 02:30 03:00 03:30 04:00"),
    ],
)
def test_times_are_round_on_the_clock_of_the_reader(zone, start, minutes, expected):
    begin = datetime.fromisoformat(start)
    found = ticks(Scale(begin, begin + timedelta(minutes=minutes)), zone)

    assert " ".join(tick.at.strftime("%H:%M") for tick in found) == expected


def test_texts_at_the_edges_are_not_cut_off():
    found = ticks(HOUR, UTC)

    assert [tick.anchor for tick in found] == ["start", *["middle"] * 5, "end"]


def test_columns_are_as_high_as_their_counts():
    assert columns([0, 1, 2, 0]) == "M1 100v-50h.8V100zM2 100v-100h.8V100z"
    assert columns([1, 10_000]).startswith("M0 100v-4h")  # it can be seen
    assert columns([0, 0]) == columns([]) == ""
    assert (share(1, 4), share(0, 0)) == (25, 0)


# Colours

STYLE = (ROOT / "django_redislock/static/django_redislock/pages.css").read_text()
PAGES = {"light": ["#ffffff", "#f8f8f8"], "dark": ["#121212", "#212121"]}


def palette(theme):
    block = re.search(rf'\[data-theme="{theme}"\] \{{(.*?)\}}', STYLE, re.DOTALL)[1]
    return dict(re.findall(r"--redislock-(\w+): (#\w{6});", block))


@pytest.mark.parametrize("theme", PAGES)
def test_colours_stand_out_from_the_page(theme):
    for name, colour in palette(theme).items():
        for page in PAGES[theme]:
            assert contrast(colour, page) >= 3, name


def test_the_dark_colours_are_the_same_however_dark_was_chosen():
    by_system = re.search(r"scheme: dark\) \{\s*:root \{(.*?)\}", STYLE, re.DOTALL)[1]

    assert dict(re.findall(r"--redislock-(\w+): (#\w{6});", by_system)) == palette("dark")
    assert palette("dark").keys() == palette("light").keys()
