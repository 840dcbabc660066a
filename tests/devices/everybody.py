"""Accessibility of a page in a browser: for users who cannot see it, hold a phone, have no mouse.

The rules are axe-core's, which npm fetches once into the cache of the tests; nothing of it is
shipped. The tests read a page's state from attributes: its policy forbids evaluating the
expressions that a wait would need.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.devices.packages import UnavailableError, cached, fetch

AXE = "4.14.1"
PHONE = {"width": 360, "height": 740}
DESK = {"width": 1280, "height": 900}

_RUN = """async (rules) => {
  const asked = rules.length ? { runOnly: rules } : {};
  const { violations } = await axe.run(document, { resultTypes: ["violations"], ...asked });
  return violations.flatMap(({ id, nodes }) => nodes.map((n) => `${id}: ${n.html.slice(0, 200)}`));
}"""

_OVERFLOWING = """() => {
  const wide = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= wide) return [];
  return [...document.querySelectorAll("body *")]
    .filter((e) => e.getBoundingClientRect().right > wide + 1)
    .filter((e) => !e.parentElement.closest(".wide, .drawing, pre"))
    .map((e) => e.outerHTML.slice(0, 100));
}"""

_CONTROLS = """() => {
  const named = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex]";
  const checked = (e) => e.type !== "radio" || e.checked;
  const found = [...document.querySelectorAll(named)].filter(
    (e) => e.tabIndex >= 0 && !e.disabled && checked(e) && e.checkVisibility());
  window.controls = found;
  return found.map((e) => e.outerHTML.slice(0, 120));
}"""

_FOCUSED = """() => {
  const e = document.activeElement;
  const { outlineStyle, outlineWidth } = getComputedStyle(e);
  const { top, bottom, left, right } = e.getBoundingClientRect();
  const inside = bottom > 0 && right > 0 && top < innerHeight && left < innerWidth;
  const shown = inside && outlineStyle !== "none" && parseFloat(outlineWidth) >= 1;
  return [window.controls.indexOf(e), shown];
}"""


def axe() -> Path:
    """The script of axe-core. Raises UnavailableError."""
    npm = shutil.which("npm")
    if npm is None:
        raise UnavailableError("there is no npm, which brings axe-core")

    def make(folder: Path) -> None:
        command = [npm, "install", "--prefix", str(folder), "--ignore-scripts", "--no-save"]
        fetch([*command, "--no-audit", "--no-fund", "--silent", f"axe-core@{AXE}"], "axe-core")

    return cached(f"axe-core-{AXE}", make) / "node_modules/axe-core/axe.min.js"


def findings(page: Any, rules: Sequence[str] = ()) -> list[str]:
    """Violations of axe-core's rules (all or some), of any severity."""
    found: list[str] = page.evaluate(_RUN, list(rules))
    return found


def overflowing(page: Any) -> list[str]:
    """The elements that make the page wider than a phone's screen."""
    page.set_viewport_size(PHONE)
    found: list[str] = page.evaluate(_OVERFLOWING)
    page.set_viewport_size(DESK)
    return found


def walk(page: Any) -> list[str]:
    """Problems for users with only a keyboard: controls that the tab key does not reach, or that
    show no focus. The walk ends where it began, so no control traps the focus."""
    controls: list[str] = page.evaluate(_CONTROLS)
    page.evaluate("() => document.activeElement.blur()")
    met: list[int] = []
    faint = set()
    for _ in range(len(controls) + 1):  # it may begin at the last one, where the focus was
        page.keyboard.press("Tab")
        number, shown = page.evaluate(_FOCUSED)
        met.append(number)
        if not shown:
            faint.add(number)
    missed = set(range(len(controls))) - set(met)
    wrong = [f"never reached: {controls[number]}" for number in sorted(missed)]
    return wrong + [f"not seen: {controls[number]}" for number in sorted(faint - {-1})]


def all_wrong(page: Any) -> list[str]:
    """All of that, of the page that is open, light and dark."""
    page.emulate_media(color_scheme="light")
    wrong = findings(page)
    page.emulate_media(color_scheme="dark")
    wrong += [f"dark: {each}" for each in findings(page, ["color-contrast"])]
    page.emulate_media(color_scheme="light")
    wrong += [f"wide: {each}" for each in overflowing(page)]
    return wrong + walk(page)
