// Shown while there is no job: commands to start one.

import { useEffect } from "preact/hooks";
import { readSession, session } from "../api/session";
import { Copy } from "./copy";

export function Empty() {
  useEffect(() => void readSession(), []);
  const secret = session.value === null || session.value.name === "none" ? "" : "RANKWATCH_TOKEN=… ";
  const monitor = `RANKWATCH_MONITOR=${location.origin}`;
  return (
    <section class="empty">
      <h1>No job yet.</h1>
      <p>A job appears here with the first report of one of its ranks.</p>
      <h2>Start one with the launcher</h2>
      <Command text={`${secret}rankwatch run --monitor ${location.origin} --nproc-per-node 4 train.py`} />
      <h2>Or monitor an existing script: add two lines</h2>
      <Command text={"import rankwatch\nrankwatch.init()"} />
      <p>and, in its environment:</p>
      <Command text={`${secret}${monitor} torchrun --nproc-per-node 4 train.py`} />
    </section>
  );
}

const Command = ({ text }: { text: string }) => <div class="command"><pre tabIndex={0}>{text}</pre><Copy text={text} label="Copy" /></div>;
