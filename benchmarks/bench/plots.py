"""Bars as SVG: ours in colour, in colours for light and for dark pages."""

from pathlib import Path
from xml.etree.ElementTree import Element, ElementTree, SubElement, indent

from .contenders import OURS
from .figure import Plot, number

WIDTH, ROW, BAR = 720, 26, 16
LABELS, VALUES = 250, 100  # widths of what stands before the bars and behind them

TEXT, BARS, OURS_BARS = "#808080", "#9aa5b1", "#2f80c8"


def save(plot: Plot, folder: Path) -> Path:
    svg = _draw(plot)
    indent(svg)
    path = folder / f"bench-{plot.name}.svg"
    ElementTree(svg).write(path, encoding="utf-8")
    path.write_text(f"{path.read_text()}\n")
    return path


def _draw(plot: Plot) -> Element:
    svg = Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {WIDTH} {ROW * (len(plot.bars) + 1) + 8}",
            "font-family": "sans-serif",
            "font-size": "13",
            "fill": TEXT,
            "role": "img",
            "aria-label": plot.title,
        },
    )
    unit = f" ({plot.unit})" if plot.unit else ""
    _write(svg, 0, 16, f"{plot.title}{unit}", **{"font-weight": "bold"})
    longest = max(plot.bars.values())
    alone = not any(label.startswith(OURS) for label in plot.bars)  # then all of them are ours
    for place, (label, value) in enumerate(plot.bars.items(), 1):
        top = ROW * place + 4
        width = max(1.0, (WIDTH - LABELS - VALUES) * value / longest)
        colour = OURS_BARS if alone or label.startswith(OURS) else BARS
        _write(svg, 0, top + 13, label.replace("`", ""))
        box = {"x": f"{LABELS}", "y": f"{top}", "width": f"{width:.1f}", "height": f"{BAR}"}
        SubElement(svg, "rect", box | {"rx": "2", "fill": colour})
        _write(svg, LABELS + width + 8, top + 13, number(value))
    return svg


def _write(svg: Element, x: float, y: float, text: str, **style: str) -> None:
    SubElement(svg, "text", {"x": f"{x:.1f}", "y": f"{y}"} | style).text = text
