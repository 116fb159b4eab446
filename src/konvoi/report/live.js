// Shows a newer page when there is one, in place: the reader stays where they are. Ends with the run or the server.
(() => {
  const EVERY_MS = 2000;
  let shown = null;
  async function refresh() {
    try {
      const text = await (await fetch(location.pathname)).text();
      if (shown !== null && text !== shown) {
        const fresh = new DOMParser().parseFromString(text, "text/html");
        document.title = fresh.title;
        document.querySelector("main").replaceWith(fresh.querySelector("main"));
      }
      shown = text;
    } catch {
      const mark = document.querySelector(".live");
      if (mark) mark.textContent = "no longer live: the server has ended";
      return;
    }
    if (document.querySelector(".live")) setTimeout(refresh, EVERY_MS);
  }
  refresh();
})();
