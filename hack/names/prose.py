import re,os,sys
# words in comments (and, with -md, in markdown prose outside tables' code spans)
subs=[(r'\bprocessor time\b','CPU time'),(r'\bProcessor time\b','CPU time'),(r'\bprocessors\b','CPUs'),(r'\bProcessors\b','CPUs'),(r'\bprocessor\b','CPU'),
(r'\banew\b','again'),(r'\bmended\b','fixed'),(r'\bMended\b','Fixed'),(r'\bmends\b','repairs'),
(r'\bpod ranges\b','pod CIDRs'),(r'\bpod range\b','pod CIDR'),(r"\bpods' ranges\b",'pod CIDRs'),(r'\bservice ranges\b','service CIDRs'),
(r'\bthe own Node\b','its own Node'),(r'\bthe own node\b','this node'),(r'\bcertificate authority\b','CA'),(r'\bcertificate authorities\b','CAs'),(r"\bthe cluster's authority\b","the cluster's CA"),(r'\bauthorities\b','CAs'),(r'\b[Aa]uthority\b','CA'),
(r'\bthe machine\b','the host'),(r'\bThe machine\b','The host'),(r'\bthis machine\b','this host'),(r'\bone machine\b','one host'),(r'\bmachines\b','hosts'),(r'\bMachines\b','Hosts'),(r"\ba machine\b",'a host'),(r"\bA machine\b",'A host'),(r"\bmachine's\b","host's"),
(r'\bbeaten\b','renewed'),(r'\bbeats\b','renewals'),(r'\bis let go\b','is released'),(r'\blet go of\b','released'),(r'\blet go\b','released'),(r'\btaken away\b','removed'),
(r'\bnobody\b','no one'),(r'\bNobody\b','No one'),(r'\bsomebody else\b','another party'),(r'\bsomebody\b','someone'),(r'\bSomebody\b','Someone'),(r'\bwhoever\b','anyone who'),(r'\bWhoever\b','Anyone who'),
]
keep=re.compile(r'emulated|virtual machine|state machine|Debian|small machine|boot|/[a-z]|authorit(y|ies) of (DNS|a zone)')
def fix(s):
    for a,b in subs:
        if 'machine' in a.lower() and keep.search(s): continue
        s=re.sub(a,b,s)
    return s
def go(p):
    t=open(p).read(); out=[]
    for l in t.split('\n'):
        st=l.strip()
        if st.startswith('//') and not st.startswith('//go:') and not st.startswith('//nolint'): l=fix(l)
        else:
            i=l.find(' // ')
            if i>0 and '"' not in l[i:] and '`' not in l[i:]: l=l[:i]+fix(l[i:])
        out.append(l)
    n='\n'.join(out)
    if n!=t: open(p,'w').write(n)
for r in sys.argv[1:]:
    for d,_,fs in os.walk(r):
        if 'testdata' in d: continue
        for f in fs:
            if f.endswith('.go') and not f.startswith('zz_'): go(os.path.join(d,f))
