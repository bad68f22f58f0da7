// Writes times as the reader does. Everything works without it.
const time = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

function localize(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const at = new Date(element.dateTime);
    if (!Number.isNaN(at.getTime())) {
      element.title = element.textContent;
      element.textContent = time.format(at);
    }
  }
}

localize(document);
// The element has new content.
document.addEventListener("content", (event) => localize(event.target));
