// Links to the page of a node and of a parallel group.

import type { Dimension } from "../api/types";
import { DIMENSIONS, groupAddress, groupName, nodeAddress } from "../logic/route";

/** `text`: shown instead of the name. */
export function NodeLink({ host, text = host }: { host: string | undefined; text?: string | undefined }) {
  return host ? <a href={nodeAddress(host)} onClick={(event) => event.stopPropagation()}>{text}</a> : <>–</>;
}

export function GroupLinks({ job, groups }: { job: string; groups: Partial<Record<Dimension, number>> }) {
  const known = DIMENSIONS.filter((dimension) => groups[dimension] !== undefined);
  return (
    <>
      {known.map((dimension, i) => (
        <span key={dimension}>
          {i > 0 && " · "}
          <a href={groupAddress(job, dimension, groups[dimension]!)}>{groupName(dimension, groups[dimension])}</a>
        </span>
      ))}
    </>
  );
}

/** What incidents show of a host: a sentence that begins with its name. */
export const OfHost = ({ host, text }: { host: string; text: string }) => <p class="sequel"><NodeLink host={host} />{text.slice(host.length)}</p>;
