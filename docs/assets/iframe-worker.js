// The search of the theme runs in a worker, which browsers do not start from file://. There a frame
// takes its place: the same script, the same messages, in the page's own thread.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      document.body.append(frame);
      this.window = frame.contentWindow;
      this.window.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = new Promise((resolve, reject) => {
        const script = this.window.document.createElement("script");
        script.src = address;
        script.onload = resolve;
        script.onerror = reject;
        this.window.document.body.append(script);
      });
    }

    postMessage(data) {
      this.ready.then(() => this.window.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
