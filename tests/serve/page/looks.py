"""What can be checked of a page's looks without eyes: names, contrast, room."""

from devtools import Failure

# Text whose contrast with what lies below it is less than 4.5, and what reaches beyond the page's sides.
FAULTS = """(() => {
  const rgba = (text) => (text.match(/[\\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const below = (node) => {
    for (let one = node; one; one = one.parentElement) {
      const colour = rgba(getComputedStyle(one).backgroundColor);
      if (colour.length < 4 || colour[3] > 0.9) return colour;
    }
    return [255, 255, 255];
  };
  const faults = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const node = text.parentElement;
    if (!text.data.trim() || node.closest('.hidden-label, .skip')) continue;
    if (!node.checkVisibility({opacityProperty: true})) continue;
    const a = light(rgba(getComputedStyle(node).color)), b = light(below(node));
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) faults.push(`${text.data.trim().slice(0, 40)}: contrast ${contrast.toFixed(2)}`);
    if (parseFloat(getComputedStyle(node).fontSize) < 12) faults.push(`${text.data.trim()}: small type`);
  }
  const reaches_out = (node) => {
    const box = node.getBoundingClientRect();
    return box.width > 0 && (box.right > innerWidth + 0.5 || box.left < -0.5);
  };
  for (const node of document.querySelectorAll('button, input, textarea, h1, h2, p, li, pre, svg, .bar, .card')) {
    if (node.checkVisibility() && !node.closest('.hidden-label') && reaches_out(node)) {
      faults.push(`${node.localName} ${node.className} ${node.innerText ?? ''} reaches out of the page`);
    }
  }
  if (document.documentElement.scrollWidth > innerWidth) faults.push('the page scrolls sideways');
  for (const node of document.querySelectorAll('button, summary')) {
    const box = node.getBoundingClientRect();
    if (node.checkVisibility() && box.width > 0 && Math.min(box.width, box.height) < 24) {
      faults.push(`${node.ariaLabel ?? node.innerText} is too small to hit`);
    }
  }
  return faults;
})()"""
NAMED = {
    "button",
    "textbox",
    "link",
    "progressbar",
    "img",
    "image",
    "region",
    "navigation",
    "complementary",
    "list",
    "group",
    "article",
}


def check(page, where):
    faults = page.js(FAULTS)
    for node in page.call("Accessibility.getFullAXTree")["nodes"]:
        role = node.get("role", {}).get("value")
        if node.get("ignored") or role not in NAMED:
            continue
        is_named = bool(node.get("name", {}).get("value"))
        if not is_named and role in ("list", "group"):  # those of a section's own do not need one
            continue
        if not is_named:
            faults.append(f"a {role} has no name")
    if faults:
        raise Failure(f"{where}: {'; '.join(faults)}")
