// Package pressure keeps the node alive when memory, disk or processes run
// short: it reclaims what no one needs, then ends the pod that is most to
// blame, one at a time; and it collects garbage before it comes to that.
//
// The decisions are pure: core.go (what to do about a shortage), rank.go (who
// goes first and what is said), local.go (pods over their own limits), and
// garbage.go (which dead containers and unused images go). The shells read
// signals when the kernel says that something moved, or when the distance to a
// threshold could have been covered, and perform.
package pressure
