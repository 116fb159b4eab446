// Two panes: what is typed on the left is translated on the right, sentence by sentence.

import { $, offer, showNotice, showSeconds } from "./elements.js";
import { clearFrom, linkSource, placeSentence, showPlainSource, startSentences, translatedText } from "./sentences.js";
import { translateStream } from "./service.js";

const PAUSE_MS = 250;
const languages = new Intl.DisplayNames(["en"], { type: "language", fallback: "code" });

let translators = [];
let maxCharacters = Infinity;
let request = new AbortController();
let timer = 0;

export function startTranslation(models, limits) {
  translators = models;
  maxCharacters = limits.max_text_characters;
  offer($("translator"), models, (model) => `${directionOf(model)} (${model.name})`);
  startSentences(() => $("translator").value);
  $("translator").addEventListener("change", changeModel);
  $("source").addEventListener("input", changeText);
  $("clear").addEventListener("click", clearText);
  $("copy").addEventListener("click", copyTranslation);
  showLanguages();
  // A browser that goes back to the page puts the old text in.
  if ($("source").value) changeText();
}

const nameOf = (language) => languages.of(language);
const directionOf = ({ source, target }) => `${nameOf(source)} \u2192 ${nameOf(target)}`;
const lengthOf = (text) => [...text].length;

function showLanguages() {
  const { source, target } = translators.find((model) => model.name === $("translator").value);
  $("source-language").textContent = nameOf(source);
  $("target-language").textContent = nameOf(target);
  $("source").lang = $("mirror").lang = source;
  $("target").lang = target;
}

function changeModel() {
  showLanguages();
  clearFrom(0);
  translateAfter(0);
}

function changeText() {
  showPlainSource($("source").value);
  showLength();
  translateAfter(PAUSE_MS);
}

function clearText() {
  $("source").value = "";
  $("source").focus();
  changeText();
}

function showLength() {
  const length = lengthOf($("source").value);
  const isTooLong = length > maxCharacters;
  const count = `${length.toLocaleString("en")} of ${maxCharacters.toLocaleString("en")} characters`;
  $("length").textContent = length ? count : "";
  $("length").classList.toggle("problem", isTooLong);
  $("source").setAttribute("aria-invalid", isTooLong);
  $("clear").hidden = !length;
}

/** Whatever is under way answers a text that is no longer there. */
function translateAfter(pauseMs) {
  request.abort();
  clearTimeout(timer);
  timer = setTimeout(translate, pauseMs);
}

async function translate() {
  const text = $("source").value;
  const { signal } = (request = new AbortController());
  showNotice($("translation-notice"), tooLong(text));
  if (!text.trim() || tooLong(text)) return finish(0, null);
  setBusy(true);
  let count = 0;
  try {
    for await (const item of translateStream($("translator").value, text, signal)) {
      if (item.translations) placeSentence(count++, item);
      else finish(count, item.seconds);
    }
  } catch (error) {
    if (!signal.aborted) fail(error, count);
  }
}

function tooLong(text) {
  const excess = lengthOf(text) - maxCharacters;
  if (excess <= 0) return null;
  return { problem: `The text is ${excess.toLocaleString("en")} characters too long`, hint: "translate it in parts" };
}

function finish(numSentences, seconds) {
  clearFrom(numSentences);
  linkSource();
  setBusy(false);
  showSeconds($("time"), seconds);
  $("copy").hidden = numSentences === 0;
}

/** What has come of a long text stays. */
function fail(error, numSentences) {
  finish(numSentences, null);
  showNotice($("translation-notice"), error);
  if (error.retryAfterSeconds) timer = setTimeout(translate, error.retryAfterSeconds * 1000);
}

function setBusy(isBusy) {
  // Read out when all of it is there, not word by word.
  $("target").setAttribute("aria-busy", isBusy);
  if (isBusy) $("time").textContent = "Translating\u2026";
}

async function copyTranslation() {
  await copy(translatedText());
  $("copy").textContent = "Copied";
  setTimeout(() => ($("copy").textContent = "Copy"), 1500);
}

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Over plain HTTP from another machine a browser has no clipboard object.
  const area = document.body.appendChild(document.createElement("textarea"));
  area.value = text;
  area.select();
  document.execCommand("copy");
  area.remove();
  $("copy").focus();
}
