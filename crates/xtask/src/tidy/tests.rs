//! Goal: each rule reports its breaches. Method: small artificial trees, with one breach each and without it.

use super::*;

fn source(path: &str, text: &str) -> Source {
    Source { path: path.to_owned(), bytes: text.as_bytes().to_vec() }
}

/// The breaches in a tree of one file and the `clippy.toml`s of the engine's crates.
fn breaches(path: &str, text: &str) -> Vec<String> {
    let rules = ENGINE.map(|name| source(&format!("crates/{name}/clippy.toml"), "a = 1\n"));
    let mut tree = Vec::from(rules);
    tree.push(source(path, text));
    check(&tree)
}

/// The breaches of a crate `name` whose manifest has the lines `dependencies` after the package's name.
fn manifest_breaches(name: &str, dependencies: &str) -> Vec<String> {
    let text = format!("[package]\nname = \"{name}\"\n{}\n", dependencies.trim_end());
    breaches(&format!("crates/{name}/Cargo.toml"), &text)
}

#[test]
fn a_crate_depends_on_those_below_it() {
    let all: Vec<String> = ORDER.iter().map(|name| format!("{name}.workspace = true\n")).collect();
    for (rank, name) in ORDER.iter().enumerate() {
        for (other, dependency) in all.iter().enumerate() {
            let forbidden = FORBIDDEN.iter().any(|(from, to)| from == name && to.contains(&ORDER[other]));
            for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
                let found = manifest_breaches(name, &format!("[{kind}]\n{dependency}"));
                let below = rank < other || rank == other && kind == "dev-dependencies";
                assert_eq!(found.is_empty(), below && !forbidden, "{name} -> {dependency}: {found:?}");
            }
        }
    }
}

#[test]
fn a_crate_has_no_forbidden_dependency() {
    assert_eq!(manifest_breaches("settee-http", "[dependencies]\nhyper = \"1\""), [""; 0]);
    assert_eq!(
        manifest_breaches("settee-doc", "[dependencies]\nhyper = \"1\""),
        ["crates/settee-doc/Cargo.toml: settee-doc must not depend on hyper (dependencies)"]
    );
    assert_eq!(manifest_breaches("settee-http", "[dependencies]\nsettee-log.workspace = true").len(), 1);
    assert_eq!(manifest_breaches("settee-tree", "[dependencies]\nsettee-log.workspace = true").len(), 1);
}

#[test]
fn renamed_and_target_specific_dependencies_are_checked() {
    let renamed = "[dependencies]\nsofa = { path = \"../settee-doc\", package = \"settee-doc\" }";
    assert_eq!(manifest_breaches("settee-io", renamed).len(), 1);
    let target = "[target.'cfg(unix)'.dependencies]\nsettee-doc.workspace = true";
    assert_eq!(manifest_breaches("settee-io", target).len(), 1);
    assert_eq!(manifest_breaches("settee-http", target), [""; 0]);
}

#[test]
fn the_simulation_is_only_for_tests_and_depends_only_on_files() {
    assert_eq!(manifest_breaches("settee-log", "[dev-dependencies]\nsettee-sim.workspace = true"), [""; 0]);
    assert_eq!(manifest_breaches("settee-log", "[dependencies]\nsettee-sim.workspace = true").len(), 1);
    assert_eq!(manifest_breaches("settee-sim", "[dependencies]\nsettee-io.workspace = true"), [""; 0]);
    assert_eq!(manifest_breaches("settee-sim", "[dependencies]\nsettee-log.workspace = true").len(), 1);
}

#[test]
fn only_a_crates_own_tests_enable_failpoints() {
    let own = "settee-log = { path = \".\", features = [\"failpoints\"] }";
    assert_eq!(manifest_breaches("settee-log", &format!("[dev-dependencies]\n{own}")), [""; 0]);
    assert_eq!(manifest_breaches("settee-log", "[features]\nfailpoints = []"), [""; 0]);
    assert_eq!(manifest_breaches("settee-log", "[features]\ndefault = [\"failpoints\"]").len(), 1);
    let others = "settee-log = { path = \"../settee-log\", features = [\"failpoints\"] }";
    for kind in ["dependencies", "dev-dependencies"] {
        assert_eq!(manifest_breaches("settee-store", &format!("[{kind}]\n{others}")).len(), 1, "{kind}");
    }
}

#[test]
fn the_tasks_and_other_crates_are_independent() {
    assert_eq!(manifest_breaches("xtask", "[dependencies]\ntoml.workspace = true"), [""; 0]);
    assert_eq!(manifest_breaches("xtask", "[dependencies]\nsettee-io.workspace = true").len(), 1);
    assert_eq!(manifest_breaches("settee", "[dependencies]\nxtask = { path = \"../xtask\" }").len(), 1);
}

#[test]
fn a_crate_has_its_directorys_name_and_a_rank_in_the_order() {
    assert_eq!(breaches("crates/settee-io/Cargo.toml", "[package]\nname = \"settee-files\"\n").len(), 1);
    assert_eq!(manifest_breaches("settee-cushion", "[dependencies]").len(), 1);
    assert_eq!(breaches("crates/settee-io/Cargo.toml", "[package\n").len(), 1, "not TOML");
}

#[test]
fn unsafe_code_is_allowed_only_in_settee_io() {
    let code = "//! Files.\nfn f() { unsafe { g() } }\n";
    assert_eq!(breaches("crates/settee-io/src/file.rs", code), [""; 0]);
    assert_eq!(
        breaches("crates/settee-log/src/file.rs", code),
        ["crates/settee-log/src/file.rs:2: `unsafe` is allowed only in settee-io"]
    );
}

#[test]
fn unsafe_in_comments_and_literals_is_allowed() {
    let texts = [
        "// unsafe\n",
        "/* unsafe /* nested */ unsafe */\n",
        "const A: &str = \"unsafe\";\n",
        "const A: &str = \"\\\" unsafe\";\n",
        "const A: &str = r#\"\" unsafe\"#;\n",
        "const A: &[u8] = br\"unsafe\";\n",
        "let quote = '\"'; // unsafe\n",
        "let quote = '\\''; // unsafe\n",
        "#![forbid(unsafe_code)]\n",
    ];
    for text in texts {
        assert_eq!(breaches("crates/settee-log/src/a.rs", text), [""; 0], "{text}");
    }
}

#[test]
fn unsafe_code_after_comments_and_literals_is_reported() {
    let codes = [
        "/* a */ unsafe fn f() {}\n",
        "const A: &str = \"\\\\\"; unsafe fn f() {}\n",
        "const A: &str = r\"\\\"; unsafe fn f() {}\n",
        "const A: char = '\"'; unsafe fn f() {} // \"\n",
        "fn f<'a>(x: &'a str) { unsafe { g('\\'') } }\n",
    ];
    for code in codes {
        assert_eq!(breaches("crates/settee-log/src/a.rs", code).len(), 1, "{code}");
    }
}

#[test]
fn no_rust_test_is_ignored() {
    let ignored = ["#[ignore]\n", "#[test] #[ignore = \"slow\"]\n", "    #[cfg_attr(unix, ignore)]\n"];
    for text in ignored {
        assert_eq!(breaches("crates/settee-log/src/a.rs", text).len(), 1, "{text}");
    }
    assert_eq!(breaches("crates/settee-log/src/a.rs", "let ignore = 1;\n// #[ignore]\n"), [""; 0]);
}

#[test]
fn no_node_test_is_skipped() {
    for text in ["test.skip('a', () => {});\n", "test('a', { skip: true }, () => {});\n", "it.only('a');\n"] {
        assert_eq!(breaches("tests/interop/a.test.js", text).len(), 1, "{text}");
    }
    let query = "test('a', async () => db.list({ limit: 2 }));\nconst range = { limit: 1, skip: 2 };\n";
    assert_eq!(breaches("tests/interop/a.test.js", query), [""; 0]);
}

#[test]
fn a_file_is_shorter_than_the_limit() {
    assert_eq!(breaches("docs/a.md", &"a\n".repeat(LINES_MAX - 1)), [""; 0]);
    assert_eq!(breaches("docs/a.md", &"a\n".repeat(LINES_MAX)).len(), 1);
    assert_eq!(breaches("Cargo.lock", &"a\n".repeat(LINES_MAX)), [""; 0]);
}

#[test]
fn no_file_contains_a_path_of_a_particular_machine() {
    for start in MACHINE_PATHS {
        assert_eq!(breaches("README.md", &format!("Run `{start}me/settee`.\n")).len(), 1, "{start}");
        assert_eq!(breaches("README.md", &format!("http://127.0.0.1{start}x and docs{start}x\n")), [""; 0]);
    }
}

#[test]
fn text_has_no_control_characters_and_one_final_newline() {
    let breached = ["a\0b\n", "a\tb\n", "a\r\n", "a \n", "a", "a\n\n"];
    for text in breached {
        assert_eq!(breaches("docs/a.md", text).len(), 1, "{text:?}");
    }
    assert_eq!(breaches("docs/a.md", "a b\n\nc\n"), [""; 0]);
    assert_eq!(
        check(&[Source { path: "docs/a.md".to_owned(), bytes: vec![0xff] }]),
        ["docs/a.md: not UTF-8"]
    );
}

#[test]
fn a_crates_root_begins_with_its_doc() {
    assert_eq!(breaches("crates/settee-io/src/lib.rs", "//! Files.\n"), [""; 0]);
    assert_eq!(breaches("crates/settee-io/src/lib.rs", "mod file;\n").len(), 1);
    assert_eq!(breaches("crates/settee/src/main.rs", "fn main() {}\n").len(), 1);
    assert_eq!(breaches("crates/settee-io/src/file.rs", "mod file;\n"), [""; 0]);
}

#[test]
fn a_comment_uses_terms_in_place_of_idioms() {
    let path = "crates/settee-io/src/file.rs";
    assert_eq!(breaches(path, "// The caller reads N bytes, roomy and untold.\nlet told = room;\n"), [""; 0]);
    assert_eq!(breaches(path, "/// Whoever waits.\n"), [format!("{path}:1: a comment says \"whoever\"")]);
    let two_lines = breaches(path, "fn f() {\n    // It lets\n    // go of the lock.\n}\n");
    assert_eq!(two_lines, [format!("{path}:3: a comment says \"lets go\"")]);
    assert_eq!(breaches(path, "//! So many, told.\n").len(), 2);
}

#[test]
fn the_engines_crates_have_equal_clippy_settings() {
    let manifest =
        |name: &str| source(&format!("crates/{name}/Cargo.toml"), &format!("package.name = \"{name}\"\n"));
    let clippy = |name: &str, text: &str| source(&format!("crates/{name}/clippy.toml"), text);
    let both = [manifest("settee-log"), manifest("settee-doc")];
    assert_eq!(check(&both).len(), 2);
    let [log, doc] = both;
    let mut tree = vec![log, doc, clippy("settee-log", "a = 1\n")];
    assert_eq!(check(&tree), ["crates/settee-doc/clippy.toml: must exist and equal settee-log's"]);
    tree.push(clippy("settee-doc", "a = 2\n"));
    assert_eq!(check(&tree).len(), 1);
    tree[3] = clippy("settee-doc", "a = 1\n");
    assert_eq!(check(&tree), [""; 0]);
}
