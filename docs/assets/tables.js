// A table that scrolls can be reached with the keyboard; the theme wraps tables after the page has loaded.
const reachable = () =>
  document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])").forEach((frame) => {
    frame.tabIndex = 0
    frame.setAttribute("role", "group")
    frame.setAttribute("aria-label", "table")
  })
new MutationObserver(reachable).observe(document.body, { childList: true, subtree: true })
reachable()
