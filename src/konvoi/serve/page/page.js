// The page as a whole: which models there are, whether a token is wanted, text or pictures.

import { $, showNotice } from "./elements.js";
import { startPictures } from "./pictures.js";
import { describeModels, hasToken, keepToken } from "./service.js";
import { startTranslation } from "./translation.js";

const STARTS = { translation: startTranslation, classification: startPictures };
let isOpen = false;

async function start() {
  showNotice($("notice"), null);
  try {
    const { models, limits } = await describeModels();
    $("token-form").hidden = true;
    if (!isOpen) open(models, limits);
  } catch (error) {
    if (error.status !== 401) showNotice($("notice"), error);
  }
}

function open(models, limits) {
  isOpen = true;
  const tasks = Object.keys(STARTS).filter((task) => models.some((model) => model.task === task));
  for (const task of tasks) STARTS[task](models.filter((model) => model.task === task), limits);
  $("tasks").hidden = tasks.length < 2;
  show(tasks[0]);
}

function show(task) {
  for (const button of $("tasks").children) {
    const isShown = button.dataset.task === task;
    button.setAttribute("aria-pressed", isShown);
    $(button.dataset.task).hidden = !isShown;
  }
}

function askForToken() {
  $("token-form").hidden = false;
  $("token-problem").textContent = hasToken() ? "This is not the token." : "";
  $("token").focus();
  $("token").select();
}

$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken($("token").value.trim());
  start();
});
// A service that was started again may want another token in the middle.
addEventListener("unauthorised", askForToken);
$("tasks").addEventListener("click", ({ target }) => target.dataset.task && show(target.dataset.task));
start();
