// Built-ins that pay for what they do.
//
// The engine interrupts at calls and at backward jumps of functions. A built-in is one call, whatever its
// data. In the realms of design functions and of documents, the methods below are replaced by ones that charge
// *steps*: a step is some nanoseconds of the engine's work, and STEPS_PER_TICK of them are a tick. Built-ins
// whose work nothing bounds are removed; the engines of CouchDB before QuickJS do not have them.
//
// A method of unbounded work is charged before it runs, others afterwards, for what they did.
//
// What is not charged: operators and syntax (`===`, `+`, templates, spread, `for (k in o)`) and methods that compare, copy
// or list without the replacement of a method below. The memory limit bounds their data.
(function (useTicks) {
  'use strict';

  const { stringify } = JSON;
  const arrayTest = Array.isArray;
  const hasOwn = Object.hasOwn;
  const apply = Reflect.apply;
  const { defineProperty: define, getPrototypeOf: prototypeOf, getOwnPropertyDescriptor: descriptorOf } = Object;
  const bind = Function.prototype.bind;
  const call = Function.prototype.call;
  const { floor, min } = Math;
  // A function of `this` and the arguments of `method`.
  const uncurry = (method) => apply(bind, call, [method]);

  const STEPS_PER_TICK = 5000;
  // For a call of a replaced method.
  const STEPS_CALL = 20;
  // For a member of an object that is serialised.
  const STEPS_MEMBER = 60;
  // For a call of a regular expression.
  const STEPS_MATCH = 40;
  // For a character or an element that a method creates.
  const STEPS_CREATED = 6;
  // Characters that a step copies, repeats and compares.
  const COPIED_PER_STEP = 32;
  const FILLED_PER_STEP = 3;
  const COMPARED_PER_STEP = 10;
  // A long pattern may differ in its last character only, wherever the text is compared with it.
  const PATTERN_SHORT = 16;
  // Comparisons that a search may make before it pays.
  const COMPARISONS_UNPAID_MAX = 1e7;

  // ---- Payment ----

  let debt = 0;

  function charge(steps) {
    // Not for NaN.
    if (steps > 0) debt += steps;
    if (debt >= STEPS_PER_TICK) settle();
  }

  function settle() {
    const ticks = floor(debt / STEPS_PER_TICK);
    debt = ticks < 1e9 ? debt - ticks * STEPS_PER_TICK : 0;
    if (useTicks(ticks)) for (;;);
  }

  function forgive() {
    debt = 0;
  }

  // ---- Array-like objects ----

  // The time of these methods grows with `length`, which may be 2^53 without any element.
  const LOOPING_METHODS = [
    'concat', 'copyWithin', 'fill', 'join', 'reverse', 'shift', 'slice', 'sort', 'splice', 'toLocaleString',
    'toReversed', 'toSorted', 'toSpliced', 'unshift', 'with', 'indexOf', 'lastIndexOf', 'includes', 'every',
    'some', 'forEach', 'map', 'filter', 'reduce', 'reduceRight', 'find', 'findIndex', 'findLast',
    'findLastIndex',
  ];
  const CONVERSIONS = ['toString', 'valueOf', Symbol.toPrimitive];
  const CONVERTED_DEPTH_MAX = 4;
  const CONVERTED_LENGTH_MAX = 1000;
  const SPREADABLE = Symbol.isConcatSpreadable;

  function pay(target) {
    if (target === null || (typeof target !== 'object' && typeof target !== 'function')) return;
    if (!arrayTest(target)) requirePlainLength(target);
    charge(+target.length);
  }

  // Whether a value converts to the same number each time: no function of the caller's takes part.
  function convertsAlike(value, depth) {
    if (value === null || typeof value !== 'object') return typeof value !== 'function';
    if (depth === CONVERTED_DEPTH_MAX) return false;
    for (let i = 0; i < CONVERSIONS.length; i++) {
      const descriptor = descriptorOf(value, CONVERSIONS[i]);
      if (descriptor !== undefined && (!hasOwn(descriptor, 'value') || typeof descriptor.value === 'function')) {
        return false;
      }
    }
    if (!arrayTest(value)) return true;
    if (value.length > CONVERTED_LENGTH_MAX) return false;
    for (let i = 0; i < value.length; i++) {
      const descriptor = descriptorOf(value, i);
      if (descriptor !== undefined && !(hasOwn(descriptor, 'value') && convertsAlike(descriptor.value, depth + 1))) {
        return false;
      }
    }
    return true;
  }

  // A length that is computed could be another one when the built-in reads it.
  function requirePlainLength(target) {
    for (let holder = target; holder !== null; holder = prototypeOf(holder)) {
      const descriptor = descriptorOf(holder, 'length');
      if (descriptor === undefined) continue;
      if (hasOwn(descriptor, 'value') && convertsAlike(descriptor.value, 0)) return;
      throw new TypeError('the length of an array-like object must be a plain property');
    }
  }

  // `concat` copies the elements of arrays, and of what says that it is like one.
  function payForElements(value) {
    if (value === null || typeof value !== 'object') return;
    if (arrayTest(value) || value[SPREADABLE]) pay(value);
  }

  function replaceMethod(holder, name, method) {
    define(holder, name, { value: method, writable: true, enumerable: false, configurable: true });
  }

  // Replaces a method by `replacement(raw)`, of which `raw` is a function of `this` and the arguments.
  function replace(holder, name, replacement) {
    const method = holder[name];
    if (typeof method !== 'function') return;
    const paid = replacement(uncurry(method), method);
    define(paid, 'name', { value: method.name, configurable: true });
    define(paid, 'length', { value: method.length, configurable: true });
    replaceMethod(holder, name, paid);
  }

  function payFor(holder, name) {
    replace(holder, name, (raw, method) => ({
      paid(...rest) {
        pay(this);
        if (name === 'concat') for (let i = 0; i < rest.length; i++) payForElements(rest[i]);
        return apply(method, this, rest);
      },
    }).paid);
  }

  function flatten(target, source, depth) {
    pay(source);
    for (let i = 0; i < source.length; i++) {
      if (!(i in source)) continue;
      if (depth > 0 && arrayTest(source[i])) flatten(target, source[i], depth - 1);
      else target[target.length] = source[i];
    }
    return target;
  }

  function limitArrays(global) {
    const methods = global.Array.prototype;
    for (let i = 0; i < LOOPING_METHODS.length; i++) payFor(methods, LOOPING_METHODS[i]);
    const map = methods.map;
    const { Array: MakeArray } = global;
    replaceMethod(methods, 'flat', { flat(depth = 1) { return flatten(new MakeArray(), this, depth); } }.flat);
    replaceMethod(methods, 'flatMap', {
      flatMap(...rest) { return flatten(new MakeArray(), apply(map, this, rest), 1); },
    }.flatMap);
    replace(MakeArray, 'from', (raw, from) => ({
      paid(source, ...rest) {
        if (source !== null && typeof source === 'object' && !arrayTest(source)) pay(source);
        return apply(from, this, [source, ...rest]);
      },
    }).paid);
  }

  // ---- Strings ----

  // Steps of copying `length` characters.
  function copying(length) {
    return STEPS_CALL + length / COPIED_PER_STEP;
  }

  // Steps of searching `length` characters for a pattern.
  function searching(length, patternLength) {
    const comparisons = patternLength > PATTERN_SHORT ? patternLength / 4 : 1 + patternLength / PATTERN_SHORT;
    return STEPS_CALL + length / COMPARED_PER_STEP * comparisons;
  }

  // The steps of a search whose end is not known, if they may be many.
  function payForSearch(text, pattern) {
    if (text.length * pattern.length > COMPARISONS_UNPAID_MAX) charge(searching(text.length, pattern.length));
  }

  function asText(value) {
    return typeof value === 'string' ? value : `${value}`;
  }

  // Methods whose work is that of creating their result, and of reading `this`, each character of which costs
  // these steps.
  const CREATING_METHODS = {
    slice: 0, substring: 0, substr: 0, repeat: 0, padEnd: 0, padStart: 0, trim: 1, trimEnd: 1,
    trimStart: 1, trimLeft: 1, trimRight: 1, isWellFormed: 1, toWellFormed: 1, toLowerCase: STEPS_CREATED,
    toUpperCase: STEPS_CREATED, toLocaleLowerCase: STEPS_CREATED, toLocaleUpperCase: STEPS_CREATED,
    anchor: 1, big: 0, blink: 0, bold: 0, fixed: 0, fontcolor: 1, fontsize: 1, italics: 0, link: 1, small: 0,
    strike: 0, sub: 0, sup: 0,
  };

  function limitCreation(methods, name) {
    const perCharacter = CREATING_METHODS[name];
    const filling = name === 'repeat' || name === 'padStart' || name === 'padEnd';
    replace(methods, name, (raw) => ({
      paid(a, b) {
        if (perCharacter > 0) charge(typeof this === 'string' ? this.length * perCharacter : 0);
        const result = raw(this, a, b);
        charge(copying(result.length) + (filling ? result.length / FILLED_PER_STEP : 0));
        return result;
      },
    }).paid);
  }

  // A string with this many marks in a row needs no normal form that is used by a language.
  const MARKS = /\p{M}{31}/u;
  const BEYOND_LATIN = /[^\0-\u02ff]/;
  const matches = uncurry(RegExp.prototype.exec);

  // Steps of normalising: each mark is moved past the marks before it.
  function normalising(text) {
    const length = text.length;
    if (matches(BEYOND_LATIN, text) === null) return length * STEPS_CREATED;
    return matches(MARKS, text) === null ? length * 4 * STEPS_CREATED : length * length;
  }

  function limitSearches(methods) {
    const indexOf = uncurry(methods.indexOf);
    const matchSymbol = Symbol.match;
    const find = (text, pattern, from) => {
      payForSearch(text, pattern);
      const at = from === undefined ? indexOf(text, pattern) : indexOf(text, pattern, from);
      const begin = typeof from === 'number' && from > 0 ? min(from, text.length) : 0;
      charge(searching(at < 0 ? text.length - begin : at - begin, pattern.length));
      return at;
    };
    replace(methods, 'indexOf', (raw) => ({
      paid(pattern, from) {
        if (this === null || this === undefined) return raw(this);
        return find(asText(this), asText(pattern), from);
      },
    }).paid);
    replace(methods, 'includes', (raw) => ({
      paid(pattern, from) {
        if (this === null || this === undefined) return raw(this);
        const text = asText(this);
        // It raises the exception.
        if (isPattern(pattern)) return raw(text, /./);
        return find(text, asText(pattern), from) >= 0;
      },
    }).paid);
    replace(methods, 'lastIndexOf', (raw) => ({
      paid(pattern, from) {
        if (this === null || this === undefined) return raw(this);
        const text = asText(this);
        const sought = asText(pattern);
        payForSearch(text, sought);
        const at = raw(text, sought, from);
        const begin = typeof from === 'number' && from < text.length ? from : text.length;
        charge(searching(begin - (at < 0 ? 0 : at), sought.length));
        return at;
      },
    }).paid);

    function isPattern(value) {
      if (value === null || typeof value !== 'object') return false;
      return value[matchSymbol] !== undefined ? Boolean(value[matchSymbol]) : false;
    }
  }

  // A method of a string and a pattern: a regular expression does the work, and pays, or a text.
  function limitPattern(methods, name, symbol) {
    replace(methods, name, (raw) => ({
      paid(pattern, argument) {
        if (this === null || this === undefined) return raw(this);
        if (pattern !== null && typeof pattern === 'object') {
          const method = pattern[symbol];
          if (method !== null && method !== undefined) return raw(this, pattern, argument);
        }
        const text = asText(this);
        const sought = name === 'split' && pattern === undefined ? undefined : asText(pattern);
        if (sought !== undefined) payForSearch(text, sought);
        const result = raw(text, sought, argument);
        const created = typeof result === 'string' ? copying(result.length) : result.length * STEPS_CREATED;
        charge(searching(text.length, sought === undefined ? 0 : sought.length) + created);
        return result;
      },
    }).paid);
  }

  function limitStrings(global) {
    const methods = global.String.prototype;
    for (const name in CREATING_METHODS) limitCreation(methods, name);
    limitSearches(methods);
    limitPattern(methods, 'split', Symbol.split);
    limitPattern(methods, 'replace', Symbol.replace);
    limitPattern(methods, 'replaceAll', Symbol.replace);
    replace(methods, 'normalize', (raw) => ({
      paid(form) {
        if (this === null || this === undefined) return raw(this, form);
        const text = asText(this);
        charge(normalising(text));
        return raw(text, form);
      },
    }).paid);
    replace(methods, 'localeCompare', (raw) => ({
      paid(other) {
        if (this === null || this === undefined) return raw(this, other);
        const text = asText(this);
        const compared = asText(other);
        charge(normalising(text) + normalising(compared));
        return raw(text, compared);
      },
    }).paid);
    replace(methods, Symbol.iterator, (raw) => ({
      paid() {
        if (typeof this === 'string') charge(this.length * 2 * STEPS_CREATED);
        return raw(this);
      },
    }).paid);
    const { raw } = global.String;
    replaceMethod(global.String, 'raw', {
      raw(strings, ...rest) {
        pay(strings && strings.raw);
        return apply(raw, global.String, [strings, ...rest]);
      },
    }.raw);
  }

  const TEXT_FUNCTIONS = [
    'decodeURI', 'decodeURIComponent', 'encodeURI', 'encodeURIComponent', 'escape', 'unescape', 'parseInt',
    'parseFloat',
  ];

  function limitTextFunction(holder, name) {
    replace(holder, name, (raw) => ({
      paid(value, argument) {
        const text = typeof value === 'object' ? `${value}` : value;
        if (typeof text === 'string') charge(STEPS_CALL + text.length * 2);
        return raw(undefined, text, argument);
      },
    }).paid);
  }

  const isSticky = uncurry(descriptorOf(RegExp.prototype, 'sticky').get);

  // The engine counts the steps of one match; `test` and the methods of strings call `exec`.
  function limitExpressions(global) {
    replace(global.RegExp.prototype, 'exec', (raw) => ({
      paid(value) {
        const text = asText(value);
        const before = this.lastIndex;
        const match = raw(this, text);
        // One place is tried: `split` does that at each.
        let length = isSticky(this) ? 0 : text.length;
        if (match !== null) {
          const begin = match.index;
          length = match[0].length + (before <= begin ? begin - before : begin);
        }
        charge(STEPS_MATCH + length);
        return match;
      },
    }).paid);
  }

  // ---- Objects ----

  function limitListing(holder, name) {
    replace(holder, name, (raw) => ({
      paid(value) {
        const result = raw(undefined, value);
        charge(STEPS_CALL + result.length * STEPS_CREATED);
        return result;
      },
    }).paid);
  }

  // ---- JSON ----

  const FLAT_LENGTH_MAX = 100;

  function isPrimitive(value) {
    return value === null || (typeof value !== 'object' && typeof value !== 'function');
  }

  // Each member is a call, which the engine can interrupt. The result is that of no replacer.
  function counted(key, value) {
    debt += STEPS_MEMBER;
    if (debt >= STEPS_PER_TICK) settle();
    return value;
  }

  // A copy of a short array of primitive values, which is serialised like it. Undefined for other values.
  function flatCopy(value) {
    if (!arrayTest(value) || value.toJSON !== undefined) return undefined;
    const length = value.length;
    if (length > FLAT_LENGTH_MAX) return undefined;
    const copy = [];
    for (let i = 0; i < length; i++) {
      const element = value[i];
      const type = typeof element;
      if (type === 'object' ? element !== null : type === 'function' || type === 'bigint') return undefined;
      copy[i] = element;
    }
    return copy;
  }

  // The JSON text of an array of pairs. Objects may share others, so that their text is endless in practice.
  function stringifyPairs(rows, begin, end) {
    const pairs = [];
    let count = 0;
    let replacer;
    for (let i = begin; i < end; i += 2) {
      let key = rows[i];
      let value = rows[i + 1];
      if (!isPrimitive(key)) {
        const copy = flatCopy(key);
        if (copy === undefined) replacer = counted;
        else key = copy;
      }
      if (!isPrimitive(value)) {
        const copy = flatCopy(value);
        if (copy === undefined) replacer = counted;
        else value = copy;
      }
      pairs[count++] = [key, value];
    }
    return stringify(pairs, replacer);
  }

  function stringifyCounted(value, write, replacer, space) {
    if (typeof replacer === 'function') return write(value, replacer, space);
    if (isPrimitive(value)) return write(value, replacer, space);
    if (arrayTest(replacer)) {
      pay(replacer);
      write(value, counted);
      return write(value, replacer, space);
    }
    const copy = flatCopy(value);
    return copy === undefined ? write(value, counted, space) : write(copy, null, space);
  }

  function limitJson(global) {
    const { stringify: write } = global.JSON;
    replaceMethod(global.JSON, 'stringify', {
      stringify(value, replacer, space) { return stringifyCounted(value, write, replacer, space); },
    }.stringify);
    limitTextFunction(global.JSON, 'parse');
  }

  // ---- All ----

  const LISTING = ['keys', 'values', 'entries', 'getOwnPropertyNames'];
  // Their loops over native iterators are not interrupted.
  const REMOVED_SET_METHODS = [
    'isDisjointFrom', 'isSubsetOf', 'isSupersetOf', 'intersection', 'difference', 'symmetricDifference', 'union',
  ];
  const REMOVED_GLOBALS = [
    // Asynchronous functions need promises inside the engine; nothing ever settles them.
    'Promise', 'queueMicrotask', 'Iterator', 'DisposableStack', 'AsyncDisposableStack',
  ];

  function remove(holder, names) {
    for (let i = 0; i < names.length; i++) delete holder[names[i]];
  }

  function limitBuiltins(global) {
    limitArrays(global);
    limitStrings(global);
    limitExpressions(global);
    limitJson(global);
    for (let i = 0; i < TEXT_FUNCTIONS.length; i++) limitTextFunction(global, TEXT_FUNCTIONS[i]);
    for (let i = 0; i < LISTING.length; i++) limitListing(global.Object, LISTING[i]);
    limitListing(global.Reflect, 'ownKeys');
    const iterators = global.Iterator.prototype;
    const helpers = Object.getOwnPropertyNames(iterators);
    for (let i = 0; i < helpers.length; i++) if (helpers[i] !== 'constructor') delete iterators[helpers[i]];
    remove(iterators, ['constructor']);
    remove(global.Set.prototype, REMOVED_SET_METHODS);
    remove(global.Math, ['sumPrecise']);
    remove(global.Array, ['fromAsync']);
    // They show the functions that run, those of this file included.
    remove(global.Error, ['prepareStackTrace', 'captureStackTrace']);
    remove(global, REMOVED_GLOBALS);
  }

  return { limitBuiltins, forgive, replaceMethod, stringifyPairs, stringifyCounted };
})
