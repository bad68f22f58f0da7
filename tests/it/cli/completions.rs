//! Scripts that complete commands in a shell.

use rlaas_testkit::process::run;

#[test]
fn completions_name_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, script, error) = run(&["completions", shell]);
        assert_eq!((code, error.as_str()), (0, ""));
        for command in [
            "serve",
            "check",
            "check-config",
            "config",
            "health",
            "bench",
            "metrics",
            "completions",
        ] {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
    let (code, _, error) = run(&["completions", "tcsh"]);
    assert_eq!(code, 2);
    assert!(error.contains("bash"), "{error}");
}
