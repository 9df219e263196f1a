// The images and videos of the form. A file is uploaded when it is added; requests, links and the history name it by its id.
import { $, complain, el } from "./dom.js";
import { ask } from "./server.js";

const THUMB_PX = 192;
const previews = new Map();  // reference -> address of the file in this page
let items = [];  // { kind, name, reference, file, preview }: without a reference it is still to be uploaded

export function setMedia(next) {
  items = next;
  $("thumbs").replaceChildren(...items.map(thumbnail));
  $("frames-field").hidden = !items.some(item => item.kind === "video");
}

// Items as a request names them: what this page has seen of them is shown again.
export function setReferences(images, videos, thumbs = {}) {
  const thumb = reference => Object.hasOwn(thumbs, reference) ? thumbs[reference] : undefined;
  const item = kind => reference =>
    ({ kind, name: reference.slice(0, 60), reference, preview: previews.get(reference) ?? thumb(reference) });
  setMedia([...images.map(item("image")), ...videos.map(item("video"))]);
  items.filter(one => one.kind === "image" && !one.preview && isUpload(one)).forEach(loadPreview);
}

const isUpload = item => item.reference.startsWith("upload:");

// Show the picture of an upload that came by a link; one that is not to be had says why when it is opened.
async function loadPreview(item) {
  item.preview = await address(item).catch(() => "");
  setMedia(items);
}

// The references of all items, by kind; what is not uploaded yet is. Raises RequestError.
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
  const isHere = item.preview || isUpload(item);
  return el("span", { className: "thumb" }, isHere ? picture(item, n) : tag(item), remove);
}

function picture(item, n) {
  const open = el("button", { type: "button", className: "open", ariaLabel: `Show ${item.kind} ${n + 1} large`,
    onclick: () => view(item) });
  if (!item.preview) open.append(item.kind);
  else if (item.kind === "video" && !item.preview.startsWith("data:"))
    open.append(el("video", { src: item.preview, muted: true, preload: "metadata" }), el("span", { className: "play" }, "▶"));
  else open.append(el("img", { src: item.preview, alt: `${item.kind} ${n + 1}` }));
  return open;
}

// What the server is to fetch: the page loads nothing from elsewhere.
function tag({ kind, reference }) {
  const isUrl = /^https?:\/\//.test(reference);
  const name = isUrl ? el("a", { href: reference, target: "_blank", rel: "noreferrer noopener" }, reference) : reference;
  return el("span", { className: "tag" }, `${kind}: `, name);
}

// The file of an upload that this page has not sent itself, as that of a link.
async function address(item) {
  if (item.preview && !(item.preview.startsWith("data:") && isUpload(item))) return item.preview;
  if (!previews.has(item.reference)) {
    const answer = await ask(`v1/uploads/${item.reference.slice("upload:".length)}`);
    previews.set(item.reference, URL.createObjectURL(await answer.blob()));
  }
  return previews.get(item.reference);
}

async function view(item) {
  try {
    const src = await address(item);
    const isVideo = item.kind === "video";
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
  const kind = file.type.startsWith("video/") ? "video" : file.type.startsWith("image/") ? "image" : "";
  if (!kind) return complain(`${file.name} is neither an image nor a video.`);
  const item = { kind, name: file.name, reference: "", file, preview: URL.createObjectURL(file) };
  setMedia([...items, item]);
  try {
    await upload(item);
  } catch (error) {  // what is no file of its kind is of no use; what met a missing key or a busy server is sent again later
    if (!error.wait && !["key", "unreachable"].includes(error.status)) setMedia(items.filter(other => other !== item));
    complain(`${file.name}: ${error.message}`);
  }
}

export function addFiles(files) {
  complain("");
  return Promise.all([...files].map(addFile));
}

function addReference() {
  const reference = $("reference").value.trim(), kind = $("reference-kind").value;
  complain("");
  if (!/^(https?:\/\/.|upload:.|media:.|data:.)/.test(reference))
    return complain("A reference is a URL (https://…), upload:ID or media:NAME.");
  const preview = /^data:image\/(png|jpeg|webp|gif);/.test(reference) ? reference : previews.get(reference);
  setMedia([...items, { kind, name: reference.slice(0, 60), reference, preview }]);
  $("reference").value = "";
}

// What the history keeps of the items: small pictures by reference.
export async function thumbs() {
  const small = await Promise.all(items.map(async ({ reference, preview, kind }) =>
    [reference, preview && kind === "image" ? await shrink(preview) : ""]));
  return Object.fromEntries(small.filter(([, url]) => url));
}

async function shrink(src) {
  const image = el("img", { src });
  try { await image.decode(); } catch { return ""; }
  const scale = Math.min(1, THUMB_PX / Math.max(image.naturalWidth, image.naturalHeight));
  const size = length => Math.max(1, Math.round(length * scale));
  const canvas = el("canvas", { width: size(image.naturalWidth), height: size(image.naturalHeight) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/png");
}

function listen() {
  $("files").onchange = event => { addFiles(event.target.files); event.target.value = ""; };
  $("add-reference").onclick = addReference;
  $("reference").onkeydown = event => event.key === "Enter" && (event.preventDefault(), addReference());
  $("close-viewer").onclick = () => $("viewer").close();
  $("viewer").onclick = event => event.target === $("viewer") && $("viewer").close();
  $("viewer").onclose = () => $("viewed").replaceChildren();
  document.onpaste = ({ clipboardData: { files } }) => { if (files.length) addFiles(files); };
  document.ondragover = event => {
    if (event.dataTransfer.types.includes("Files")) event.preventDefault(), document.body.classList.add("over");
  };
  document.ondragleave = event => event.relatedTarget || document.body.classList.remove("over");
  document.ondrop = event => {
    document.body.classList.remove("over");
    if (event.dataTransfer.files.length) event.preventDefault(), addFiles(event.dataTransfer.files);
  };
}
listen();
