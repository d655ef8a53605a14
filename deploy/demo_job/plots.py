# SPDX-License-Identifier: Apache-2.0
"""Line charts as SVG: enough for the report and a picture of it, and nothing to load."""
import dataclasses
import html
import math

WIDTH, HEIGHT = 860, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 22, 44
COLOURS = ("#4269d0", "#ff725c", "#3ca951", "#9c6b4e", "#a463f2", "#6cc5b0")
POINTS_MAX = 1500
PICTURE_STYLE = (".t{font:12px system-ui,sans-serif;fill:#556}.g{stroke:#dde}.m{stroke:#d33;stroke-dasharray:3 3}"
                 ".l{stroke:#889;stroke-dasharray:6 4}.b0{fill:#eef2f8}.b1{fill:#f7f8fb}")


@dataclasses.dataclass
class Line:
    """One series: (x, y) points; `step` draws it as stairs, `dots` as unconnected points."""
    name: str
    points: list
    step: bool = False
    dots: bool = False


@dataclasses.dataclass
class Chart:
    """One chart. bands: (x0, x1, label) shaded alternately. marks: (x, text) vertical lines."""
    x_label: str
    y_label: str
    lines: list
    bands: list = dataclasses.field(default_factory=list)
    marks: list = dataclasses.field(default_factory=list)
    log_y: bool = False
    level: tuple = None  # (y, label): a horizontal line


class _Scale:
    def __init__(self, low, high, first, last, logarithmic=False):
        self._log = logarithmic
        if logarithmic:
            low, high = math.log10(low), math.log10(high)
        if high - low < 1e-12:
            low, high = low - 0.5, high + 0.5
        self._low, self._span = low, high - low
        self._first, self._length = first, last - first

    def __call__(self, value):
        value = math.log10(value) if self._log else value
        return self._first + (value - self._low) / self._span * self._length


def _ticks(low, high, count=6):
    if high - low < 1e-12:
        return [low]
    raw = (high - low) / count
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= raw)
    first = math.ceil(low / step)
    return [first * step + i * step for i in range(int((high - first * step) / step + 1e-9) + 1)]


def _log_ticks(low, high):
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [m * 10.0 ** d for d in decades for m in (1, 2, 5)]
    return [t for t in ticks if low <= t * 1.0001 and t <= high * 1.0001]


def _thin(points):
    stride = max(1, math.ceil(len(points) / POINTS_MAX))
    return points[::stride] + (points[-1:] if (len(points) - 1) % stride else [])


def _bounds(chart):
    kept = [(x, y) for line in chart.lines for x, y in line.points
            if y is not None and math.isfinite(y) and (not chart.log_y or y > 0)]
    if not kept:
        return None
    xs = [x for x, _ in kept] + [x for band in chart.bands for x in band[:2]]
    ys = [y for _, y in kept] + ([chart.level[0]] if chart.level else [])
    low, high = min(ys), max(ys)
    if chart.log_y:
        return min(xs), max(xs), low / 1.2, high * 1.2
    margin = 0.05 * (high - low or abs(high) or 1.0)
    return min(xs), max(xs), low - margin, high + margin


def _text(x, y, words, anchor="middle", kind="t"):
    return (f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
            f"{html.escape(str(words))}</text>")


def _axes(chart, bounds, x_of, y_of):
    x0, x1, y0, y1 = bounds
    parts = []
    for tick in _log_ticks(y0, y1) if chart.log_y else _ticks(y0, y1, 5):
        y = y_of(tick)
        parts.append(f'<line class="g" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" '
                     f'y2="{y:.1f}"/>' + _text(LEFT - 6, y + 4, f"{tick:.4g}", "end"))
    for tick in _ticks(x0, x1, 8):
        parts.append(_text(x_of(tick), HEIGHT - BOTTOM + 16, f"{tick:.4g}"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, chart.x_label))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<text class="t" text-anchor="middle" transform="translate(14 {middle:.0f}) '
                 f'rotate(-90)">{html.escape(chart.y_label)}</text>')
    return parts


def _draw(line, colour, x_of, y_of, log_y):
    points = [(x_of(x), y_of(y)) for x, y in _thin(line.points)
              if y is not None and math.isfinite(y) and (not log_y or y > 0)]
    if not points:
        return ""
    if line.dots:
        return "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.8" fill="{colour}" '
                       'fill-opacity=".55"/>' for x, y in points)
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for x, y in points[1:]:
        path += f"H{x:.1f}V{y:.1f}" if line.step else f"L{x:.1f} {y:.1f}"
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>'


def _body(chart, bounds):
    """Everything of the chart but its legend."""
    x_of = _Scale(bounds[0], bounds[1], LEFT, WIDTH - RIGHT)
    y_of = _Scale(bounds[2], bounds[3], HEIGHT - BOTTOM, TOP, chart.log_y)
    parts = []
    for number, (x0, x1, label) in enumerate(chart.bands):
        left, width = x_of(x0), x_of(x1) - x_of(x0)
        parts.append(f'<rect class="b{number % 2}" x="{left:.1f}" y="{TOP}" width="{width:.1f}" '
                     f'height="{HEIGHT - TOP - BOTTOM}"/>')
        parts.append(_text(left + width / 2, TOP - 7, label))
    parts += _axes(chart, bounds, x_of, y_of)
    if chart.level:
        y = y_of(chart.level[0])
        parts.append(f'<line class="l" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
                     + _text(WIDTH - RIGHT - 4, y - 5, chart.level[1], "end"))
    for x, words in chart.marks:
        parts.append(f'<line class="m" x1="{x_of(x):.1f}" x2="{x_of(x):.1f}" y1="{TOP}" '
                     f'y2="{HEIGHT - BOTTOM}"><title>{html.escape(words)}</title></line>')
    for line, colour in _coloured(chart):
        parts.append(_draw(line, colour, x_of, y_of, chart.log_y))
    return "".join(parts)


def _coloured(chart):
    return [(line, COLOURS[number % len(COLOURS)]) for number, line in enumerate(chart.lines)]


def figure(chart):
    """The chart as one <figure> of a page; a sentence where there is nothing to draw."""
    bounds = _bounds(chart)
    if bounds is None:
        return "<p>No data for this chart.</p>"
    legend = "".join(f'<span><i style="background:{colour}"></i>{html.escape(line.name)}</span>'
                     for line, colour in _coloured(chart))
    return (f'<figure><div class="legend">{legend}</div><svg viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'role="img" aria-label="{html.escape(chart.y_label)}">{_body(chart, bounds)}</svg></figure>')


def picture(chart, title):
    """The chart as an SVG file that needs no page: it brings paper, fonts and legend. Empty without data."""
    bounds = _bounds(chart)
    if bounds is None:
        return ""
    legend, x = [], LEFT
    for line, colour in _coloured(chart):
        legend.append(f'<rect x="{x}" y="{HEIGHT + 6}" width="14" height="3" fill="{colour}"/>'
                      + _text(x + 20, HEIGHT + 12, line.name, "start"))
        x += 40 + 7 * len(line.name)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + 24}" role="img">'
            f"<title>{html.escape(title)}</title><style>{PICTURE_STYLE}</style>"
            f'<rect width="{WIDTH}" height="{HEIGHT + 24}" fill="#fff"/>'
            f'{_body(chart, bounds)}{"".join(legend)}</svg>\n')
