package svg

import "html/template"

// WideStyle is for what is wider than a screen, in an element of class scroll: a scrollbar that is
// always to be seen, a shadow at the edge beyond which there is more, and the first column of a table
// stays. Charts in it keep their size, so that their texts stay legible on a phone. A page that has
// it defines the colours --page, --line and --soft.
const WideStyle template.CSS = `
.scroll { overflow-x: auto; max-width: 100%; background: linear-gradient(to left, var(--page) 1rem, transparent) right / 3rem 100% no-repeat local,
  linear-gradient(to left, color-mix(in srgb, var(--soft) 45%, transparent), transparent) right / .9rem 100% no-repeat scroll; }
.scroll::-webkit-scrollbar { height: .6rem; } .scroll::-webkit-scrollbar-track { background: var(--line); border-radius: .3rem; } .scroll::-webkit-scrollbar-thumb { background: var(--soft); border-radius: .3rem; }
@supports not selector(::-webkit-scrollbar) { .scroll { scrollbar-width: auto; scrollbar-color: var(--soft) var(--line); } }
.scroll th:first-child, .scroll td:first-child { position: sticky; left: 0; background: var(--page); }
.scroll > svg { max-width: none; }
@media (max-width: 40rem) { body { margin: 1rem auto; padding: 0 .75rem; } h1 { font-size: 1.35rem; } th, td { padding: .2rem .4rem; } details > div { padding: .4rem .5rem .7rem; } }
`
