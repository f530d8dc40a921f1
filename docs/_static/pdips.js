// The arrows that open a part of the navigation have no name for screen readers: they get that of the page they belong to.
document.addEventListener("DOMContentLoaded", () => {
  for (const summary of document.querySelectorAll("nav details > summary")) {
    const page = summary.closest("li").querySelector("a");
    summary.setAttribute("aria-label", "Pages below " + (page ? page.textContent.trim() : "this one"));
  }
});
