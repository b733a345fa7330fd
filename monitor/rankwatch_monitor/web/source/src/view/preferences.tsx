// What a person chooses for all views: the time zone and the theme. In the top bar, on a phone at the foot of the page.

import { signal } from "@preact/signals";
import { chooseZone, localName, type Zone, zone } from "../logic/zone";
import { chooseTheme, type Theme, theme, THEMES } from "./theme";

const phone = matchMedia("(max-width: 620px)");
/** Whether the top bar has no room for them. */
export const narrow = signal(phone.matches);
phone.addEventListener("change", () => (narrow.value = phone.matches));

export function Preferences() {
  return (
    <span class="preferences">
      <label>
        Times:{" "}
        <select value={zone.value} onChange={(event) => chooseZone(event.currentTarget.value as Zone)}>
          <option value="local">local ({localName(new Date())})</option>
          <option value="utc">UTC</option>
        </select>
      </label>
      <label>
        Theme:{" "}
        <select value={theme.value} onChange={(event) => chooseTheme(event.currentTarget.value as Theme)}>
          {THEMES.map((each) => <option key={each} value={each}>{each}</option>)}
        </select>
      </label>
    </span>
  );
}
