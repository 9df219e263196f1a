// A judgment to take along: a link that holds it behind its #, which no browser sends to a server, or its request for curl.
import { $ } from "./dom.js";
import { hasKey } from "./server.js";

const KINDS = ["text", "image", "video"];  // of the parts of a response
const PREFIX = "#judgment=", MOST_CHARS = 5_000_000;

const pipe = (data, stream) => new Blob([data]).stream().pipeThrough(stream);

export async function copyLink({ request, result, labels }) {
  const text = JSON.stringify({ request, result, labels });
  const packed = new Uint8Array(await new Response(pipe(text, new CompressionStream("deflate-raw"))).arrayBuffer());
  const bytes = Array.from(packed, byte => String.fromCharCode(byte)).join("");
  const encoded = btoa(bytes).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
  await copy(`${location.href.split("#")[0]}${PREFIX}${encoded}`, "Link");
}

// The judgment in the address, null if it has none. Raises an error for one that cannot be read: anybody may have written it.
export async function readLink() {
  if (!location.hash.startsWith(PREFIX)) return null;
  const bytes = atob(location.hash.slice(PREFIX.length).replaceAll("-", "+").replaceAll("_", "/"));
  const packed = Uint8Array.from(bytes, byte => byte.charCodeAt(0));
  const reader = pipe(packed, new DecompressionStream("deflate-raw")).pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let part = await reader.read(); !part.done; part = await reader.read())
    if ((text += part.value).length > MOST_CHARS) throw Error("too long");
  const { request, result, labels } = JSON.parse(text);
  const parts = request.responses.filter(response => typeof response !== "string").flat();
  const responses = request.responses.filter(response => !Array.isArray(response));
  const texts = [request.question, ...responses, ...parts.map(part => part[part.type]), ...request.images, ...request.videos];
  if (texts.length > 128 || request.responses.length < 2 || !parts.every(part => KINDS.includes(part.type))
      || ![...texts, ...labels].every(one => typeof one === "string")
      || !labels.every(label => /^\w+ [12AB]$/.test(label))) throw Error("not a judgment");
  return { request, result, labels };
}

// The request for a shell, which has the key in a variable.
export async function copyCurl(request) {
  const quoted = text => `'${text.replaceAll("'", `'\\''`)}'`;
  const address = new URL(request.responses.length === 2 ? "v1/judge" : "v1/rewards", document.baseURI.split("#")[0]);
  const headers = `-H 'Content-Type: application/json'${hasKey() ? ` -H "Authorization: Bearer $REWARDLAB_KEY"` : ""}`;
  await copy(`curl -s ${quoted(address.href)} ${headers} -d ${quoted(JSON.stringify(request))}`, "Command");
}

async function copy(text, name) {
  try {
    await navigator.clipboard.writeText(text);  // there is none if the page came neither by https nor from this machine
    $("copied").textContent = `${name} copied.`;
  } catch {
    prompt(`${name}, to copy by hand:`, text);
  }
}
