// A figure and its unit stay on one line, wherever text is rendered.

import { options, type VNode } from "preact";

const UNITS = /(\d)[ \u2009](?=(?:%|°C|[mµn]?s|min|h|d|[KMGT]i?B|W|GPU-\w+|steps\/s|s\/step)(?![\w/]))|\u2009/g;
/** What a person copies or types stays as it is. */
const VERBATIM: ReadonlySet<unknown> = new Set(["code", "pre", "textarea", "option"]);

/** The spaces between figures and units as narrow ones at which no line breaks. */
export const joined = (text: string): string => text.replace(UNITS, "$1\u202f");

function joinedChildren(children: unknown): unknown {
  if (typeof children === "string") return joined(children);
  return Array.isArray(children) ? children.map(joinedChildren) : children;
}

/** Apply it to all text of elements from now on. */
export function joinUnits(): void {
  const before = options.vnode;
  options.vnode = (node: VNode) => {
    if (typeof node.type === "string" && !VERBATIM.has(node.type)) {
      const props = node.props as { children?: unknown };
      if (props.children !== undefined) props.children = joinedChildren(props.children);
    }
    before?.(node);
  };
}
