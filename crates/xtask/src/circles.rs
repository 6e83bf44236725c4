//! Import circles: the files of a crate that import each other, directly or over others.
//!
//! A file imports another where a path in it, in a `use` or in code, leads to an item of the other.
//! A path ends in the file that defines the item, not in one that re-exports it. Methods need no
//! path, so calling them is no import. Code for tests alone (`#[cfg(test)]`) doesn't count. Two
//! files that reach each other over imports are in one circle.
//!
//! Paths are resolved by name alone: an item that a macro defines is not found.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Item, UseTree};

/// A re-export may lead to another one, up to this many in a row.
const ALIASES_MAX: usize = 16;

/// A module's path from the crate's root: empty for the root itself.
type ModulePath = Vec<String>;

/// One file of a crate.
#[derive(Default)]
struct Module {
    file: PathBuf,
    /// The names of the items that the file defines, modules excepted.
    items: BTreeSet<String>,
    /// Names that a `use` brings in, and the path that each abbreviates.
    aliases: BTreeMap<String, Vec<String>>,
    /// All paths in the file that could lead to another.
    paths: BTreeSet<Vec<String>>,
    /// The paths of `use … ::*`.
    globs: Vec<Vec<String>>,
}

/// A circle: its files, and who imports what from whom in it. Paths count from the root's directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Circle {
    pub(crate) files: Vec<PathBuf>,
    /// The importing file, the imported one, and the last names of the paths that lead there.
    pub(crate) imports: Vec<(PathBuf, PathBuf, Vec<String>)>,
}

/// The modules that a module imports, with the last names of the paths that lead there.
type Imports = BTreeMap<ModulePath, BTreeSet<String>>;

/// Returns the circles of the crate whose root file is `root`.
///
/// # Errors
/// The file that can't be read or parsed.
pub(crate) fn circles(root: &Path) -> Result<Vec<Circle>, String> {
    let directory = root.with_file_name("");
    let mut modules = BTreeMap::new();
    load(root, &directory, Vec::new(), &mut modules)?;
    let imports: BTreeMap<ModulePath, Imports> =
        modules.iter().map(|(path, module)| (path.clone(), imports(path, module, &modules))).collect();
    let mut found: BTreeSet<BTreeSet<&ModulePath>> = BTreeSet::new();
    for start in modules.keys() {
        let after = reachable(start, &imports);
        let circle: BTreeSet<&ModulePath> =
            after.into_iter().filter(|other| reachable(other, &imports).contains(start)).collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    let file = |path: &ModulePath| {
        let file = &modules[path].file;
        file.strip_prefix(&directory).unwrap_or(file).to_owned()
    };
    let mut circles = Vec::new();
    for members in found {
        let mut inner = Vec::new();
        for &from in &members {
            for (to, names) in imports[from].iter().filter(|(to, _)| members.contains(to)) {
                inner.push((file(from), file(to), names.iter().cloned().collect()));
            }
        }
        circles.push(Circle { files: members.into_iter().map(file).collect(), imports: inner });
    }
    Ok(circles)
}

/// The modules that `start` imports, and those that they import, and so on.
fn reachable<'a>(start: &ModulePath, imports: &'a BTreeMap<ModulePath, Imports>) -> BTreeSet<&'a ModulePath> {
    let mut seen = BTreeSet::new();
    let mut waiting: Vec<&ModulePath> = imports[start].keys().collect();
    while let Some(next) = waiting.pop() {
        if seen.insert(next) {
            waiting.extend(imports[next].keys());
        }
    }
    seen
}

/// Parses the module `path` in `file` and the modules that it declares, whose files lie in `directory`.
fn load(
    file: &Path,
    directory: &Path,
    path: ModulePath,
    modules: &mut BTreeMap<ModulePath, Module>,
) -> Result<(), String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let parsed = syn::parse_file(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut module = Module { file: file.to_owned(), ..Module::default() };
    module.visit_file(&parsed);
    modules.insert(path.clone(), module);
    for item in &parsed.items {
        if let Item::Mod(declared) = item
            && declared.content.is_none()
            && !is_for_tests(&declared.attrs)
        {
            let name = declared.ident.to_string();
            let mut path = path.clone();
            path.push(name.clone());
            let beside = directory.join(&name).with_extension("rs");
            let below = directory.join(&name);
            let (file, below) = match named_file(&declared.attrs) {
                // The modules that it declares lie beside it.
                Some(named) => (file.with_file_name(&named), file.with_file_name(named).with_file_name("")),
                None if beside.exists() => (beside, below),
                None => (below.join("mod.rs"), below),
            };
            load(&file, &below, path, modules)?;
        }
    }
    Ok(())
}

/// The file that `#[path = "…"]` names, relative to the declaring file's directory.
fn named_file(attributes: &[syn::Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| {
        let syn::Meta::NameValue(named) = &attribute.meta else { return None };
        let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(file), .. }) = &named.value else { return None };
        named.path.is_ident("path").then(|| file.value())
    })
}

/// Whether an item is compiled for tests alone.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
    })
}

impl Module {
    /// Records the paths of a `use`, and the names that it brings in.
    fn add_use(&mut self, tree: &UseTree, mut path: Vec<String>) {
        match tree {
            UseTree::Path(part) => {
                path.push(part.ident.to_string());
                self.add_use(&part.tree, path);
            }
            UseTree::Name(name) => {
                let name = name.ident.to_string();
                if name != "self" {
                    path.push(name);
                }
                let Some(name) = path.last().cloned() else { return };
                self.aliases.insert(name, path.clone());
                self.paths.insert(path);
            }
            UseTree::Rename(rename) => {
                if rename.ident != "self" {
                    path.push(rename.ident.to_string());
                }
                self.aliases.insert(rename.rename.to_string(), path.clone());
                self.paths.insert(path);
            }
            UseTree::Glob(_) => {
                self.paths.insert(path.clone());
                self.globs.push(path);
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_use(tree, path.clone())),
        }
    }

    /// Records the paths in a macro's arguments, which have no syntax tree.
    fn add_tokens(&mut self, tokens: proc_macro2::TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                proc_macro2::TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.end_path(&mut path);
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                proc_macro2::TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                proc_macro2::TokenTree::Group(group) => {
                    self.end_path(&mut path);
                    self.add_tokens(group.stream());
                }
                _ => self.end_path(&mut path),
            }
        }
        self.end_path(&mut path);
    }

    /// Takes a path of a macro's arguments as one of the file.
    fn end_path(&mut self, path: &mut Vec<String>) {
        let path = std::mem::take(path);
        if path.len() > 1 {
            self.paths.insert(path);
        }
    }
}

impl<'ast> Visit<'ast> for Module {
    fn visit_item(&mut self, item: &'ast Item) {
        let (attributes, name) = match item {
            Item::Const(it) => (&it.attrs, Some(&it.ident)),
            Item::Enum(it) => (&it.attrs, Some(&it.ident)),
            Item::Fn(it) => (&it.attrs, Some(&it.sig.ident)),
            Item::Impl(it) => (&it.attrs, None),
            Item::Macro(it) => (&it.attrs, it.ident.as_ref()),
            Item::Mod(it) => (&it.attrs, None),
            Item::Static(it) => (&it.attrs, Some(&it.ident)),
            Item::Struct(it) => (&it.attrs, Some(&it.ident)),
            Item::Trait(it) => (&it.attrs, Some(&it.ident)),
            Item::Type(it) => (&it.attrs, Some(&it.ident)),
            Item::Union(it) => (&it.attrs, Some(&it.ident)),
            Item::Use(it) => (&it.attrs, None),
            _ => return visit::visit_item(self, item),
        };
        if !is_for_tests(attributes) {
            self.items.extend(name.map(ToString::to_string));
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.add_use(&item.tree, Vec::new());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        // A single name is local, or a `use` brought it in.
        if path.segments.len() > 1 {
            self.paths.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, it: &'ast syn::Macro) {
        self.visit_path(&it.path);
        self.add_tokens(it.tokens.clone());
    }
}

/// The modules other than `own` that define what the paths of `module` lead to.
fn imports(own: &ModulePath, module: &Module, modules: &BTreeMap<ModulePath, Module>) -> Imports {
    let mut found = Imports::new();
    for path in &module.paths {
        if let Some(target) = resolve(own, path, modules, 0)
            && target != *own
        {
            found.entry(target).or_default().extend(path.last().cloned());
        }
    }
    found
}

/// The module that defines what `path` leads to, seen from the module `from`; `None`: it leads out
/// of the crate, or is a local name.
fn resolve(
    from: &ModulePath,
    path: &[String],
    modules: &BTreeMap<ModulePath, Module>,
    alias_count: usize,
) -> Option<ModulePath> {
    let mut at = from.clone();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => at.clear(),
        "super" => drop(at.pop()?),
        "self" => {}
        _ => return look_up(at, path, modules, alias_count),
    }
    rest = &rest[1..];
    while rest.first().is_some_and(|part| part == "super") {
        at.pop()?;
        rest = &rest[1..];
    }
    look_up(at, rest, modules, alias_count)
}

/// As [`resolve`], for a path whose names begin in the module `at`.
fn look_up(
    mut at: ModulePath,
    mut path: &[String],
    modules: &BTreeMap<ModulePath, Module>,
    alias_count: usize,
) -> Option<ModulePath> {
    loop {
        let Some(name) = path.first() else { return Some(at) };
        let module = modules.get(&at)?;
        at.push(name.clone());
        if modules.contains_key(&at) {
            path = &path[1..];
            continue;
        }
        at.pop();
        if module.items.contains(name) {
            return Some(at);
        }
        if alias_count == ALIASES_MAX {
            return None;
        }
        if let Some(alias) = module.aliases.get(name) {
            // `use name::…` of another crate, which a path that begins so leads to as well.
            if alias.first() == Some(name) && alias.len() == 1 {
                return None;
            }
            let whole: Vec<String> = alias.iter().chain(&path[1..]).cloned().collect();
            return resolve(&at, &whole, modules, alias_count + 1);
        }
        return module.globs.iter().find_map(|glob| {
            let whole: Vec<String> = glob.iter().chain(path).cloned().collect();
            resolve(&at, &whole, modules, alias_count + 1)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The circles of a crate with these files, each as the names of its files.
    fn circles_of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let found = circles(&directory.path().join("lib.rs")).unwrap();
        found
            .into_iter()
            .map(|circle| circle.files.iter().map(|file| file.display().to_string()).collect())
            .collect()
    }

    #[test]
    fn files_that_import_each_other_over_a_third_are_a_circle() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b::B; pub struct A;"),
            ("b.rs", "pub struct B; fn f() { crate::c::g(); }"),
            ("c.rs", "use super::{a::A as Other, d::D}; pub fn g() {}"),
            ("d.rs", "pub struct D;"),
        ];
        assert_eq!(circles_of(&files), [["a.rs", "b.rs", "c.rs"]]);
    }

    #[test]
    fn a_path_leads_to_the_file_that_defines_the_item_not_to_the_one_that_exports_it() {
        let root = "mod a; mod b; pub use a::A; pub use b::*;";
        let a = "use crate::B; pub struct A;";
        assert_eq!(circles_of(&[("lib.rs", root), ("a.rs", a), ("b.rs", "pub struct B;")]), [[""; 0]; 0]);
        let b = "pub struct B(crate::A);";
        assert_eq!(circles_of(&[("lib.rs", root), ("a.rs", a), ("b.rs", b)]), [["a.rs", "b.rs"]]);
    }

    #[test]
    fn a_directory_and_the_arguments_of_a_macro_are_looked_into() {
        let files = [
            ("lib.rs", "mod a;"),
            ("a.rs", "mod inner; use inner::Inner; pub fn f() -> bool { true }"),
            ("a/inner.rs", "pub struct Inner; fn g() { assert!(1 == 1 && super::f()); }"),
        ];
        assert_eq!(circles_of(&files), [["a.rs", "a/inner.rs"]]);
    }

    #[test]
    fn a_file_that_an_attribute_names_is_looked_into() {
        let files = [
            ("lib.rs", "#[path = \"other/b.rs\"] mod a; pub struct Root;"),
            ("other/b.rs", "mod c; use crate::Root;"),
            ("other/c.rs", "use super::super::Root; pub struct C;"),
        ];
        assert_eq!(circles_of(&files), [[""; 0]; 0]);
        let b = "mod c; use c::C; pub struct B;";
        let files = [files[0], ("other/b.rs", b), ("other/c.rs", "use super::B; pub struct C;")];
        assert_eq!(circles_of(&files), [["other/b.rs", "other/c.rs"]]);
    }

    #[test]
    fn tests_other_crates_and_local_names_are_no_imports() {
        let files = [
            ("lib.rs", "mod a; mod b; mod std;"),
            ("a.rs", "use crate::b::B; use ::std::fmt; pub struct A; fn f(b: u8) -> u8 { b }"),
            ("b.rs", "pub struct B; #[cfg(test)] mod tests { use crate::a::A; }"),
            ("std.rs", "use crate::a::A;"),
        ];
        assert_eq!(circles_of(&files), [[""; 0]; 0]);
    }
}
