// A picture, dropped, pasted, chosen or taken, and the bars of its likeliest classes.

import { $, element, offer, showNotice, showSeconds } from "./elements.js";
import { classify } from "./service.js";

const MAX_PREVIEW_PIXELS = 1024;
const percent = new Intl.NumberFormat("en", { style: "percent", minimumFractionDigits: 1, maximumFractionDigits: 1 });

let request = new AbortController();
let picture = null;

export function startPictures(models) {
  offer($("classifier"), models, (model) => model.name);
  $("classifier").addEventListener("change", () => picture && take(picture));
  for (const input of [$("file"), $("camera")]) input.addEventListener("change", () => takeChosen(input));
  addEventListener("dragover", allowDrop);
  addEventListener("dragleave", ({ relatedTarget }) => relatedTarget ?? $("drop").classList.remove("over"));
  addEventListener("drop", takeDropped);
  addEventListener("paste", ({ clipboardData }) => takeFirst(clipboardData.files));
}

function takeChosen(input) {
  takeFirst(input.files);
  // So that choosing the same file again is a change.
  input.value = "";
}

// The whole window takes a drop: beside the frame a browser would leave the page for the picture.
function allowDrop(event) {
  if (!isShown()) return;
  event.preventDefault();
  $("drop").classList.add("over");
}

function takeDropped(event) {
  if (!isShown()) return;
  event.preventDefault();
  $("drop").classList.remove("over");
  takeFirst(event.dataTransfer.files);
}

const isShown = () => !$("classification").hidden;
const takeFirst = (files) => files.length && isShown() && take(files[0]);

async function take(file) {
  picture = file;
  request.abort();
  const { signal } = (request = new AbortController());
  showNotice($("picture-notice"), null);
  $("picture-time").textContent = "Looking\u2026";
  showPreview(file);
  try {
    const { guesses, seconds } = await classify($("classifier").value, file, signal);
    showGuesses(guesses, seconds);
  } catch (error) {
    if (!signal.aborted) showFailure(error);
  }
}

function showGuesses(guesses, seconds) {
  $("guesses").replaceChildren(...guesses.map(bar));
  showSeconds($("picture-time"), seconds);
}

function showFailure(error) {
  showGuesses([], null);
  showNotice($("picture-notice"), error);
}

const shareOf = (probability) => (probability < 0.0005 ? "< 0.1%" : percent.format(probability));

function bar({ name, probability }) {
  const made = element("li", "guess");
  const track = element("span", "track");
  track.style.setProperty("--share", probability);
  made.append(element("span", "name", name), " ", element("span", "share", shareOf(probability)), track);
  return made;
}

/** Drawn, not linked: the content policy then need not allow addresses of the browser's own making. */
async function showPreview(file) {
  const bitmap = await createImageBitmap(file).catch(() => null);
  if (picture !== file) return;
  $("preview").hidden = bitmap === null;
  $("drop").classList.toggle("filled", bitmap !== null);
  if (bitmap) draw(bitmap, $("preview"));
}

function draw(bitmap, canvas) {
  const scale = Math.min(1, MAX_PREVIEW_PIXELS / Math.max(bitmap.width, bitmap.height));
  canvas.width = Math.max(1, bitmap.width * scale);
  canvas.height = Math.max(1, bitmap.height * scale);
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
}
