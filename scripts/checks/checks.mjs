// Checks that are told as they are made, in headless Chromium or without it, and counted for the exit status.
import { Browser, findBrowser } from "./browser.mjs";

let failed = 0;

export const check = (holds, what) => {
  if (!holds) failed += 1;
  console.log(`${holds ? "ok  " : "FAIL"} ${what}`);
};

// Makes checks in a browser of their own, which is closed whatever becomes of them.
export const inBrowser = async (checks) => {
  const browser = new Browser(findBrowser());
  try {
    await checks(browser);
  } catch (error) {
    check(false, error.stack);
  } finally {
    browser.close();
  }
};

// Says how many have failed, or these words where none has.
export const end = (well) => {
  console.log(failed ? `${failed} failed` : well);
  process.exitCode = failed ? 1 : 0;
};
