//! The examples of the repository.

use rlaas_testkit::process::run;

#[test]
fn examples_pass() {
    let files = ["examples/rules.test.yaml", "examples/envoy.test.yaml"];
    let (code, out, errors) = run(&[&["test"], &files[..]].concat());
    assert_eq!((code, errors.as_str()), (0, ""), "{out}");
    assert_eq!(out.matches("  ok      ").count(), 7, "{out}");
    assert!(out.ends_with("ok: 7 passed, 0 failed; 6259 requests\n"), "{out}");
    // Nothing asks for it; the other rules of both files are reached.
    assert_eq!(out.matches("Rules that no case reached").count(), 1, "{out}");
    assert!(out.contains("\n  shop.always ("), "{out}");
}
