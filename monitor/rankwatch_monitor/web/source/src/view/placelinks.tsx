// Nodes by name, and where a rank is.

import type { RankReport } from "../api/types";
import { nodeAddress } from "../logic/route";
import { secondsIn, sectionWords } from "../logic/severity";
import { plural } from "../logic/text";

/** `text`: shown instead of the name. */
export function NodeLink({ host, text = host }: { host: string | undefined; text?: string | undefined }) {
  return host ? <a href={nodeAddress(host)} onClick={(event) => event.stopPropagation()}>{text}</a> : <>–</>;
}

/** The section of a rank; of a silent one as it was last heard. */
export function InSection({ of }: { of: RankReport }) {
  return <>{sectionWords(of)}{of.state === "silent" && secondsIn(of) !== null && <small> when last heard</small>}</>;
}

/** One node by its name, several by their number. */
export function Nodes({ hosts }: { hosts: readonly string[] }) {
  return hosts.length > 1 ? <>{plural(hosts.length, "node")}</> : <NodeLink host={hosts[0]} />;
}
