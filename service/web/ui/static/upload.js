// Uploading a data set: chosen, or dropped.

import { html, useState } from "./vendor/preact-htm.js";
import { post, withQuery } from "./api.js";
import { Problem } from "./parts.js";

const KINDS = ".npy,.npz,.csv,.tsv,.parquet,.txt,.jsonl";

export function Upload({ onUploaded }) {
  const [state, setState] = useState({});
  const [over, setOver] = useState(false);

  async function send(file) {
    if (!file) return;
    setState({ busy: file.name });
    try {
      const upload = await post(withQuery("/v1/datasets", { name: file.name }), file);
      setState({ upload });
      onUploaded(upload);
    } catch (error) {
      setState({ error });
    }
  }
  function onDrop(event) {
    event.preventDefault();
    setOver(false);
    send(event.dataTransfer.files[0]);
  }
  const { busy, upload, error } = state;
  return html`<section class="card stack">
    <h2>Your own data</h2>
    <div class=${over ? "drop over" : "drop"} onDrop=${onDrop} onDragLeave=${() => setOver(false)}
      onDragOver=${(event) => { event.preventDefault(); setOver(true); }}>
      <label for="file">Drop a file here, or choose one</label>
      <input id="file" type="file" accept=${KINDS} onChange=${(event) => send(event.target.files[0])} />
      <p class="small muted">${KINDS.replaceAll(",", " ")}</p>
    </div>
    ${busy && html`<p role="status">Uploading ${busy}…</p>`}
    ${upload && html`<p role="status" class="wrap">${upload.name}: ${upload.n} rows. The spec names it now.</p>`}
    <${Problem} error=${error} />
  </section>`;
}
