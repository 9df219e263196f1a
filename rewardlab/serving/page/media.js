// The images and videos of the form. A file is uploaded when it is judged; requests and links name it by its id.
import { $, complain, el } from "./dom.js";
import { ask } from "./server.js";

let items = [];  // { kind, name, reference, file, preview }: without a reference it is still to be uploaded

export function setMedia(next) {
  items = next;
  $("thumbs").replaceChildren(...items.map(thumbnail));
}

const itemOf = (kind, reference) => ({ kind, reference, name: reference.slice(0, 60) });

// Show the media of a request that came by a link. Its uploads are fetched.
export function setReferences(images, videos) {
  setMedia([...images.map(reference => itemOf("image", reference)), ...videos.map(reference => itemOf("video", reference))]);
  for (const item of items.filter(one => one.reference.startsWith("upload:")))
    ask(`v1/uploads/${item.reference.slice("upload:".length)}`).then(answer => answer.blob()).then(file => {
      item.preview = URL.createObjectURL(file);
      setMedia(items);
    }, error => complain(error.message));
}

// The references of all items, by kind; files that are not uploaded yet are uploaded. Raises RequestError.
export async function references() {
  await Promise.all(items.filter(item => !item.reference).map(upload));
  const of = kind => items.filter(item => item.kind === kind).map(item => item.reference);
  return { images: of("image"), videos: of("video") };
}

async function upload(item) {
  const headers = { "Content-Type": item.file.type };
  try {
    item.reference = `upload:${(await (await ask("v1/uploads", { method: "POST", body: item.file, headers })).json()).id}`;
  } catch (error) {
    error.message = `${item.name}: ${error.message}`;
    throw error;
  }
}

function thumbnail(item, n) {
  const remove = el("button", { type: "button", className: "remove", ariaLabel: `Remove ${item.kind} ${n + 1}`,
    onclick: () => setMedia(items.filter(other => other !== item)) }, "×");
  return el("span", { className: "thumb" }, item.preview ? picture(item, n) : tag(item), remove);
}

// A video, or a small picture, which a press makes large, and small again.
function picture(item, n) {
  if (item.kind === "video") return el("video", { src: item.preview, muted: true, controls: true, title: item.name });
  return el("button", { type: "button", className: "open", ariaLabel: `Resize image ${n + 1}`, title: item.name,
    onclick: ({ currentTarget }) => currentTarget.classList.toggle("large") }, el("img", { src: item.preview, alt: "" }));
}

// Media that the server fetches: the page loads nothing from elsewhere.
function tag({ kind, reference }) {
  const isUrl = /^https?:\/\//.test(reference);
  const name = isUrl ? el("a", { href: reference, target: "_blank", rel: "noreferrer noopener" }, reference) : reference;
  return el("span", { className: "tag" }, `${kind}: `, name);
}

function addFiles(files) {
  const [media, others] = [[], []];
  for (const file of files) (/^(image|video)\//.test(file.type) ? media : others).push(file);
  complain(others.map(file => `${file.name} is neither an image nor a video.`).join(" "));
  setMedia([...items, ...media.map(file => (
    { kind: file.type.split("/")[0], name: file.name, reference: "", file, preview: URL.createObjectURL(file) }))]);
}

function addReference() {
  const reference = $("reference").value.trim();
  complain("");
  if (!/^(https?:\/\/.|upload:.|media:.|data:.)/.test(reference))
    return complain("A reference is a URL (https://…), upload:ID or media:NAME.");
  setMedia([...items, itemOf($("reference-kind").value, reference)]);
  $("reference").value = "";
}

$("files").onchange = event => { addFiles(event.target.files); event.target.value = ""; };
$("add-reference").onclick = addReference;
$("reference").onkeydown = event => event.key === "Enter" && (event.preventDefault(), addReference());
document.onpaste = ({ clipboardData: { files } }) => { if (files.length) addFiles(files); };
document.ondragover = event => { if (event.dataTransfer.types.includes("Files")) event.preventDefault(); };
document.ondrop = event => {
  if (event.dataTransfer.files.length) event.preventDefault(), addFiles(event.dataTransfer.files);
};
