package admit

// Remedies are what refusals end with, for the tests through a server.
var Remedies = remedies

// Explained is a plugin as the chain has it.
var Explained = withRemedy
