// Turns the event stream of a job into events of its page, at which the page reloads its parts.
(() => {
  "use strict";

  const job = document.getElementById("job");
  if (!job?.dataset.events) return;
  const stream = new EventSource(job.dataset.events); // the browser reconnects a broken stream
  const tell = (kind) => job.dispatchEvent(new CustomEvent(kind));
  for (const kind of ["progress", "task", "state"]) stream.addEventListener(kind, () => tell(kind));
  stream.addEventListener("end", () => {
    stream.close();
    tell("end");
  });
})();
