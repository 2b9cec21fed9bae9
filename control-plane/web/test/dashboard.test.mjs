// The pages in a browser: what they show, that it moves, keyboard, colours, width and accessibility.

import assert from "node:assert/strict";
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";

import { missing, startBrowser, startMesh } from "./mesh.mjs";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** Pages, and a text that shows that their data has arrived. */
const PAGES = [
  ["namespaces", "/namespaces", "th", "bank"],
  ["namespace", "/namespaces/shop", "th", "catalog"],
  ["kind", "/namespaces/shop/statefulsets", "th", "stock"],
  ["workload", "/namespaces/shop/deployments/web", "td", "mTLS"],
  ["service", "/namespaces/shop/services/web", "main", "Inbound"],
  ["topology", "/topology?namespace=bank", "svg", "ledger"],
  ["topology-all", "/topology", "svg", "edge"],
  ["tap", "/tap?resource=deploy%2Fweb&namespace=shop", "code", "meshctl viz tap deploy/web"],
  ["top", "/top?resource=deploy%2Fweb&namespace=shop", "code", "meshctl viz top deploy/web"],
  ["routes", "/routes?namespace=shop", "th", "GET /products"],
  ["controlplane", "/controlplane", "p", "The checks pass"],
  ["gateways", "/gateways", "p", "No cluster is linked"],
  ["extensions", "/extensions", "li", "linkerd-viz"],
  ["missing", "/namespaces/shop/secrets", "h1", "Not found"],
];

const PHONE = { width: 390, height: 844 };
const DESKTOP = { width: 1360, height: 900 };

const pictures = process.env.SCREENSHOTS;
if (pictures) mkdirSync(pictures, { recursive: true });

const reason = missing();

describe("dashboard", { skip: reason, timeout: 600_000 }, () => {
  let mesh;
  let browser;

  before(async () => {
    mesh = await startMesh();
    browser = await startBrowser();
  });

  after(async () => {
    await browser?.close();
    mesh?.stop();
  });

  /** Opens a page that reports its errors; the test fails with them. */
  async function open(path, options = {}, check = () => undefined) {
    const context = await browser.newContext({ viewport: DESKTOP, ...options });
    context.setDefaultTimeout(15_000);
    const page = await context.newPage();
    const problems = [];
    page.on("pageerror", (error) => problems.push(String(error)));
    page.on("console", (message) => {
      if (["error", "warning"].includes(message.type())) problems.push(message.text());
    });
    try {
      await page.goto(mesh.url + path);
      await check(page);
      assert.deepEqual(problems, []);
    } finally {
      await context.close();
    }
  }

  const shown = (page, selector, text) => page.locator(selector, { hasText: text }).first().waitFor();

  async function picture(page, name) {
    if (pictures) await page.screenshot({ path: join(pictures, `${name}.png`) });
  }

  async function accessible(page) {
    // Not by a script element, which the policy of the page refuses.
    await page.evaluate(axe);
    const { violations } = await page.evaluate(() =>
      window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }),
    );
    const found = violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html.slice(0, 120)).join(" | ")}`);
    assert.deepEqual(found, []);
  }

  for (const [name, path, selector, text] of PAGES) {
    for (const colorScheme of ["light", "dark"]) {
      test(`${name} is shown and accessible, ${colorScheme}`, async () => {
        await open(path, { colorScheme }, async (page) => {
          await shown(page, selector, text);
          await accessible(page);
          await picture(page, `${name}-${colorScheme}`);
        });
      });
    }
    test(`${name} fits on a phone`, async () => {
      await open(path, { viewport: PHONE }, async (page) => {
        await shown(page, selector === "code" ? "h1" : selector, selector === "code" ? "T" : text);
        const width = await page.evaluate(() => document.documentElement.scrollWidth);
        assert.ok(width <= PHONE.width, `${width} px`);
        await accessible(page);
        await picture(page, `${name}-phone`);
      });
    });
  }

  test("numbers move without being asked for, in one stream", async () => {
    await open("/namespaces", {}, async (page) => {
      await shown(page, "th", "shop");
      await page.locator("text=Grafana").waitFor();
      const requests = [];
      page.on("request", (request) => requests.push(new URL(request.url()).pathname));
      const rps = page.locator("tr", { hasText: "shop" }).locator("td").nth(2);
      const first = await rps.innerText();
      await page.waitForFunction(
        ([row, before]) => {
          const found = [...document.querySelectorAll("tr")].find((it) => it.innerText.startsWith(row));
          return found && found.children[3].innerText !== before;
        },
        ["shop", first],
      );
      assert.deepEqual(requests.filter((path) => path.startsWith("/api/")), []);
      await page.locator(".sparkline polyline").first().waitFor();
      // Another page has another stream, and only one.
      await page.locator("a", { hasText: /^shop$/ }).first().click();
      await shown(page, "th", "catalog");
      assert.deepEqual(requests.filter((path) => path.startsWith("/api/")), ["/api/stream"]);
    });
  });

  test("tap shows requests, their details and stops", async () => {
    await open("/tap", {}, async (page) => {
      await shown(page, "h1", "Tap");
      await page.getByLabel(/^Namespace/).selectOption("shop");
      await page.getByLabel(/^Resource/).selectOption("deployment/web");
      await page.getByLabel("Path begins with").fill("/products");
      await shown(page, "code", "meshctl viz tap deployment/web --namespace shop --path /products");
      await page.getByRole("button", { name: "Start" }).click();
      await shown(page, ".requests .request", "/products");
      await shown(page, ".requests td", "200");
      await page.locator(".request").last().click();
      await shown(page, ".detail", "web.shop.svc.cluster.local:8080");
      await accessible(page);
      await picture(page, "tap-running");
      await page.getByRole("button", { name: "Stop" }).click();
      await page.getByRole("button", { name: "Start" }).waitFor();
    });
  });

  test("top counts requests by path", async () => {
    await open("/top?resource=deploy%2Fweb&namespace=shop", {}, async (page) => {
      await page.getByRole("button", { name: "Start" }).click();
      await shown(page, "th", "/products/17");
      await page.waitForFunction(() => Number(document.querySelector("tbody td.number")?.innerText) >= 3);
      await accessible(page);
      await picture(page, "top-running");
    });
  });

  test("workload shows its live requests", async () => {
    await open("/namespaces/shop/deployments/web", {}, async (page) => {
      await page.getByRole("button", { name: "Start tap" }).click();
      await shown(page, ".requests .request", "/cart");
    });
  });

  test("user without the right to tap is told", async () => {
    await open("/tap?resource=deploy%2Fforbidden&namespace=shop", {}, async (page) => {
      await page.getByRole("button", { name: "Start" }).click();
      await shown(page, ".problem", "missing authorization");
      await page.getByRole("button", { name: "Start" }).waitFor();
    });
  });

  test("keyboard searches, chooses and goes to pages", async () => {
    await open("/namespaces", {}, async (page) => {
      await shown(page, "th", "shop");
      await page.keyboard.press("/");
      await page.getByRole("combobox").waitFor();
      await page.keyboard.type("shop catal");
      await shown(page, "[aria-selected=true]", "shop/catalog");
      await accessible(page);
      await picture(page, "search-light");
      await page.keyboard.press("Enter");
      await page.waitForURL("**/namespaces/shop/deployments/catalog");
      assert.equal(await page.evaluate(() => document.activeElement.tagName), "H1");
      await page.keyboard.press("/");
      await page.getByRole("combobox").waitFor();
      await page.keyboard.press("Escape");
      await page.getByRole("combobox").waitFor({ state: "detached" });
      await page.keyboard.press("g");
      await page.keyboard.press("t");
      await page.waitForURL("**/tap");
      await page.goBack();
      await shown(page, "h1", "catalog");
    });
  });

  test("every control is reached with the Tab key and shows it", async () => {
    await open("/namespaces/shop", {}, async (page) => {
      await shown(page, "th", "catalog");
      const reached = new Set();
      for (let presses = 0; presses < 80; presses += 1) {
        await page.keyboard.press("Tab");
        const [id, outline] = await page.evaluate(() => {
          const all = [...document.querySelectorAll("a, button, input, select, [tabindex='0']")];
          const style = getComputedStyle(document.activeElement);
          return [all.indexOf(document.activeElement), style.outlineStyle];
        });
        if (id < 0) continue;
        if (reached.has(id)) break;
        reached.add(id);
        assert.notEqual(outline, "none", `control ${id}`);
      }
      const count = await page.locator("a, button, input, select, [tabindex='0']").count();
      assert.equal(reached.size, count);
    });
  });

  test("table sorts and filters", async () => {
    await open("/namespaces/shop", {}, async (page) => {
      await shown(page, "th", "catalog");
      const names = () => page.locator("tbody th").allInnerTexts();
      assert.equal((await names())[0], "web");
      await page.getByRole("button", { name: "Name" }).click();
      assert.deepEqual((await names()).slice(0, 2), ["cart", "catalog"]);
      await page.getByLabel("Pods, ReplicaSets and Services too").check();
      await page.getByLabel("Filter Workloads of shop").fill("pod stock");
      assert.deepEqual(await names(), ["stock-0", "stock-1"]);
    });
  });

  test("choice of colours is kept", async () => {
    await open("/namespaces", { colorScheme: "light" }, async (page) => {
      await shown(page, "th", "shop");
      const back = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      const light = await back();
      const button = page.getByRole("button", { name: /^Colours/ });
      await button.click();
      await button.click();
      assert.notEqual(await back(), light);
      await page.reload();
      await shown(page, "th", "shop");
      assert.notEqual(await back(), light);
    });
  });

  test("page says when the connection is lost", async () => {
    const own = await startMesh();
    const context = await browser.newContext();
    const page = await context.newPage();
    await page.goto(`${own.url}/namespaces`);
    await shown(page, ".connection", "live");
    own.stop();
    await shown(page, ".connection", "connection lost");
    await context.close();
  });

  test("page of another origin can neither read, embed nor tap", async () => {
    const context = await browser.newContext();
    const page = await context.newPage();
    // The same address by another name is another origin.
    const other = mesh.url.replace("127.0.0.1", "localhost");
    await page.goto(`${other}/api/version`);
    const results = await page.evaluate(async (url) => {
      const read = await fetch(`${url}/api/version`).then(() => "read", () => "refused");
      const tap = await new Promise((resolve) => {
        const socket = new WebSocket(`${url.replace("http", "ws")}/api/tap`);
        socket.onopen = () => resolve("open");
        socket.onerror = () => resolve("refused");
      });
      return [read, tap];
    }, mesh.url);
    assert.deepEqual(results, ["refused", "refused"]);
    await context.close();
  });
});
