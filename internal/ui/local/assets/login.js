// Sends the token of the address as a form, and takes it out of the address.
"use strict";
(() => {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return;
  history.replaceState(null, "", "/");
  const form = document.querySelector("form");
  form.elements.token.value = token;
  form.requestSubmit();
})();
