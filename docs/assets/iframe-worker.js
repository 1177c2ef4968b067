// Search in pages that are opened as files: browsers start no worker from file://, so a hidden frame takes its place.
// Frame and page have one origin, so messages are handed over as events, in later tasks, as a worker's are.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.scope = frame.contentWindow
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = frame.contentDocument.createElement("script")
          Object.assign(script, { src: new URL(source, document.baseURI), onload: resolve, onerror: reject })
          frame.contentDocument.body.append(script)
        })
      this.scope.importScripts = (...sources) =>
        sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve())
      this.scope.postMessage = (data) => setTimeout(() => this.dispatchEvent(new MessageEvent("message", { data })))
      this.ready = load(url)
    }

    postMessage(data) {
      this.ready.then(() => this.scope.dispatchEvent(new this.scope.MessageEvent("message", { data })))
    }
  }
}
