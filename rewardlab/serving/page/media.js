// The images and videos of the form. A file is uploaded when it is added; requests and links name it by its id.
import { $, complain, el } from "./dom.js";
import { ask } from "./server.js";

const previews = new Map();  // reference -> address of the file in this page
let items = [];  // { kind, name, reference, file, preview }: without a reference it is still to be uploaded

export function setMedia(next) {
  items = next;
  $("thumbs").replaceChildren(...items.map(thumbnail));
  $("frames-field").hidden = !items.some(item => item.kind === "video");
}

const isUpload = item => item.reference.startsWith("upload:");
const itemOf = (kind, reference) => ({ kind, reference, name: reference.slice(0, 60), preview: previews.get(reference) });

// Show the media of a request that came by a link.
export function setReferences(images, videos) {
  setMedia([...images.map(reference => itemOf("image", reference)), ...videos.map(reference => itemOf("video", reference))]);
  for (const item of items.filter(one => one.kind === "image" && !one.preview && isUpload(one)))
    address(item).then(url => { item.preview = url; setMedia(items); }, () => {});  // opening it says why it is missing
}

// The references of all items, by kind; files that are not uploaded yet are uploaded. Raises RequestError.
export async function references() {
  await Promise.all(items.filter(item => !item.reference).map(upload));
  const of = kind => items.filter(item => item.kind === kind).map(item => item.reference);
  return { images: of("image"), videos: of("video") };
}

function upload(item) {
  item.uploading ??= send(item).finally(() => { item.uploading = null; });
  return item.uploading;
}

async function send(item) {
  const headers = { "Content-Type": item.file.type || "application/octet-stream" };
  item.reference = `upload:${(await (await ask("v1/uploads", { method: "POST", body: item.file, headers })).json()).id}`;
  previews.set(item.reference, item.preview);
}

function thumbnail(item, n) {
  const remove = el("button", { type: "button", className: "remove", ariaLabel: `Remove ${item.kind} ${n + 1}`,
    onclick: () => setMedia(items.filter(other => other !== item)) });
  return el("span", { className: "thumb" }, item.preview || isUpload(item) ? picture(item, n) : tag(item), remove);
}

function picture(item, n) {
  const open = el("button", { type: "button", className: "open", ariaLabel: `Show ${item.kind} ${n + 1} large`,
    onclick: () => view(item) });
  if (!item.preview) open.append(item.kind);
  else if (item.kind === "video") open.append(el("video", { src: item.preview, muted: true, preload: "metadata" }));
  else open.append(el("img", { src: item.preview, alt: `${item.kind} ${n + 1}` }));
  return open;
}

// Media that the server fetches: the page loads nothing from elsewhere.
function tag({ kind, reference }) {
  const isUrl = /^https?:\/\//.test(reference);
  const name = isUrl ? el("a", { href: reference, target: "_blank", rel: "noreferrer noopener" }, reference) : reference;
  return el("span", { className: "tag" }, `${kind}: `, name);
}

// The address of a file in this page; an upload that another page has sent is fetched.
async function address({ preview, reference }) {
  if (preview) return preview;
  const answer = await ask(`v1/uploads/${reference.slice("upload:".length)}`);
  previews.set(reference, URL.createObjectURL(await answer.blob()));
  return previews.get(reference);
}

async function view(item) {
  try {
    const src = await address(item), isVideo = item.kind === "video";
    const large = isVideo ? el("video", { src, controls: true, muted: true }) : el("img", { src, alt: item.name });
    if (!isVideo) await large.decode();
    large.classList.toggle("small", !isVideo && large.naturalWidth < 200);
    $("viewed").replaceChildren(large);
    $("viewed-name").textContent = item.name + (isVideo ? "" : ` · ${large.naturalWidth} × ${large.naturalHeight} px`);
    $("viewer").showModal();
  } catch (error) {
    complain(error.name === "EncodingError" ? `${item.name} cannot be shown.` : error.message);
  }
}

async function addFile(file) {
  const kind = file.type.split("/")[0];
  if (!["image", "video"].includes(kind)) return complain(`${file.name} is neither an image nor a video.`);
  const item = { kind, name: file.name, reference: "", file, preview: URL.createObjectURL(file) };
  setMedia([...items, item]);
  try {
    await upload(item);
  } catch (error) {  // a file that is refused is removed; one that met a missing key or a busy server is sent again later
    if (!error.wait && !["key", "unreachable"].includes(error.status)) setMedia(items.filter(other => other !== item));
    complain(`${file.name}: ${error.message}`);
  }
}

export function addFiles(files) {
  complain("");
  return Promise.all([...files].map(addFile));
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
$("viewer").onclose = () => $("viewed").replaceChildren();
document.onpaste = ({ clipboardData: { files } }) => { if (files.length) addFiles(files); };
document.ondragover = event => { if (event.dataTransfer.types.includes("Files")) event.preventDefault(); };
document.ondrop = event => {
  if (event.dataTransfer.files.length) event.preventDefault(), addFiles(event.dataTransfer.files);
};
