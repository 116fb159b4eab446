// What the page asks of the service (the same as anybody can: see /openapi.json).

const TOKEN_KEY = "konvoi-token";

/** What went wrong, in the service's words. */
export class ServiceError extends Error {
  constructor(status, problem, hint = "", retryAfterSeconds = 0) {
    super(problem);
    Object.assign(this, { status, problem, hint, retryAfterSeconds });
  }
}

export const keepToken = (token) => sessionStorage.setItem(TOKEN_KEY, token);
export const hasToken = () => sessionStorage.getItem(TOKEN_KEY) !== null;

export async function describeModels() {
  return (await ask("api/models")).json();
}

/** Yields {source, space, translations} for each sentence as soon as it is translated, and {seconds} at the end. */
export async function* translateStream(model, text, signal) {
  const response = await ask("api/translate/stream", json({ model, text, attention: true }, signal));
  for await (const line of linesOf(response.body)) {
    // What is still in a buffer comes after an abort, too.
    signal.throwIfAborted();
    const item = JSON.parse(line);
    if (item.error) throw new ServiceError(response.status, item.error.problem, item.error.hint);
    yield item;
  }
}

export async function alternativesOf(model, sentence, count) {
  const response = await ask("api/translate", json({ model, sentences: [sentence], num_best: count, attention: true }));
  return (await response.json()).sentences[0].translations;
}

export async function classify(model, picture, signal) {
  const address = `api/classify?model=${encodeURIComponent(model)}`;
  return (await ask(address, { method: "POST", body: picture, signal })).json();
}

function json(content, signal) {
  return { method: "POST", body: JSON.stringify(content), headers: { "Content-Type": "application/json" }, signal };
}

async function ask(address, options = {}) {
  const token = sessionStorage.getItem(TOKEN_KEY);
  const headers = { ...options.headers, ...(token && { Authorization: `Bearer ${token}` }) };
  const response = await fetch(address, { ...options, headers }).catch(loseService);
  if (response.ok) return response;
  if (response.status === 401) dispatchEvent(new Event("unauthorised"));
  throw await errorOf(response);
}

function loseService(error) {
  if (error.name === "AbortError") throw error;
  throw new ServiceError(0, "The service does not answer", "is konvoi serve still running?");
}

async function errorOf(response) {
  const { error } = await response.json().catch(() => ({}));
  const problem = error?.problem ?? `The service answered ${response.status}`;
  return new ServiceError(response.status, problem, error?.hint, Number(response.headers.get("Retry-After")));
}

async function* linesOf(stream) {
  let rest = "";
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  const next = () => reader.read().catch(loseService);
  for (let part = await next(); !part.done; part = await next()) {
    const lines = (rest + part.value).split("\n");
    rest = lines.pop();
    yield* lines.filter((line) => line);
  }
  if (rest) yield rest;
}
