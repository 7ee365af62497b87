// Unpacks the page's script and runs it; its hash is in the page's policy. Browsers that cannot (before 2023) show the
// page as without script.

(async () => {
  if (!("DecompressionStream" in window)) return;
  const bytes = Uint8Array.from(atob(document.getElementById("page-code").textContent), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
})();
