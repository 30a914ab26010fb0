// Package ui looks at the status page as people do: in a headless Chromium, and
// through `berth ui`. The browser tests run against an API server in this
// process, which needs neither root nor containers.
package ui
