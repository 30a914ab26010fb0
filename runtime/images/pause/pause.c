/* pause holds a pod's namespaces open: it waits for the signal that ends the
 * pod and reaps whatever is re-parented to it when the pod shares its PID
 * namespace. It needs a few kilobytes, so thousands fit on a node. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
	sigset_t set;
	int sig;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, NULL);
	for (;;) {
		if (sigwait(&set, &sig) != 0)
			return 1;
		if (sig != SIGCHLD)
			return 0;
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
}
