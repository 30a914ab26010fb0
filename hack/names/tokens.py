# retok.py dir[,dir] old=new ... : rename identifier tokens in the Go files of dirs (not recursive unless dir ends with /...)
import re,os,sys
dirs=[]
for d in sys.argv[1].split(','):
    if d.endswith('/...'):
        for x,_,_ in os.walk(d[:-4]):
            if 'testdata' not in x: dirs.append(x)
    else: dirs.append(d)
force='-f' in sys.argv
m=dict(a.split('=') for a in sys.argv[2:] if a!='-f')
tok=re.compile(r'//[^\n]*|/\*.*?\*/|`[^`]*`|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|[A-Za-z_]\w*',re.S)
for d in dirs:
    files=[os.path.join(d,f) for f in os.listdir(d) if f.endswith('.go') and not f.startswith('zz_')]
    if not files: continue
    texts={f:open(f).read() for f in files}
    have=set()
    for t in texts.values():
        for x in tok.finditer(t):
            s=x.group(0)
            if s[0].isalpha() or s[0]=='_': have.add(s)
    use={o:n for o,n in m.items() if o in have}
    for o,n in list(use.items()):
        if n in have and not force:
            print('clash',d,o,n); del use[o]
    if not use: continue
    def sub(x):
        s=x.group(0)
        if s.startswith('//') or s.startswith('/*'):
            for o,n in use.items():
                if re.search(r'[a-z][A-Z]',o): s=re.sub(r'\b'+o+r'\b',n,s)
                s=re.sub(r'^(// )'+o+r'\b(?= (is|are|says|does|returns|makes|holds|has|keeps|tells|sets|gives|ends|wakes|asks))',r'\1'+n,s)
            return s
        return use.get(s,s)
    for f,t in texts.items():
        n=tok.sub(sub,t)
        if n!=t: open(f,'w').write(n); print('wrote',f)
