// build.rs joins the files that define these classes and functions with this one. The guest calls
// the resulting function once, before that of prelude.js, with the host's functions.
(host) => {
  localise(host);
  return { urls: urlClasses(host), encodings: encodingClasses(host) };
}
