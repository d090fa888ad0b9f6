import os, sys, time, math, functools
import numpy as np
T0=time.time()
import torch, cupy
from pmpp import cuda
from pmpp.runtime import device
from pmpp.lab.measure.graphs import capture
from pmpp.kernels.normalisation import batchnorm_channels_last as f, batchnorm_channels_last_backward as b
from pmpp.kernels import normalisation
def say(*a): print(f'{time.time()-T0:5.1f}', *a, flush=True)
F=torch.nn.functional
torch.backends.cuda.matmul.allow_tf32=False
def check():
    bad=0
    for room,names in ((f,1),(b,3)):
        for name,args in room.inputs().items():
            for r in room.LADDER:
                with np.errstate(all='ignore'):
                    if room is f:
                        got=[device.to_host(r(*args))]; refs=[room.reference(*args)]; tols=[room.tolerance(*args)]
                    else:
                        dw,db=(device.to_device(np.zeros(args[1].shape[-1],np.float32)) for _ in 'ab')
                        got=[device.to_host(r(*args,dweight=dw,dbias=db)),dw.copy_to_host(),db.copy_to_host()]
                        refs=[room.reference(*args),*room.reference_parameters(*args[:2])]
                        tols=[room.tolerance(*args),*room.tolerance_parameters(*args[:2])]
                    for what,(g,ref,tol) in enumerate(zip(got,refs,tols)):
                        g=g.astype(np.float64)
                        ok=(np.isnan(ref)==np.isnan(g))&(np.isnan(ref)|(np.abs(g-ref)<=tol)|(g==ref))
                        if not ok.all(): bad+=1; say('WRONG',room.__name__,name,r.name,what,ok.mean())
    say('checked', 'all right' if not bad else f'{bad} WRONG')
SHAPES=[(32,112,112,64),(32,56,56,64),(32,56,56,128),(32,56,56,256),(32,28,28,128),(32,28,28,256),(32,28,28,512),(32,14,14,256),(32,14,14,512),(32,14,14,1024),(32,7,7,512),(32,7,7,2048)]
DT={'float32':torch.float32,'float16':torch.float16,'bfloat16':torch.bfloat16}
class Set:
    def __init__(s,shape,dt):
        s.shape,s.dt=shape,dt
        n=math.prod(shape)*(4 if dt=='float32' else 2)
        s.k=max(2,min(16,math.ceil(200e6/n)))
        g=torch.Generator('cuda').manual_seed(1)
        s.x=[torch.randn(shape,device='cuda',generator=g).to(DT[dt]) for _ in range(s.k)]
        s.dy=[torch.randn(shape,device='cuda',generator=g).to(DT[dt]) for _ in range(s.k)]
        s.out=[torch.empty_like(s.x[0]) for _ in range(s.k)]
        c=shape[-1]
        s.w,s.b=torch.rand(c,device='cuda')+.5,torch.randn(c,device='cuda')
        s.rm,s.rv=torch.zeros(c,device='cuda'),torch.ones(c,device='cuda')
        s.dw,s.db=torch.zeros(c,device='cuda'),torch.ones(c,device='cuda')
        s.mean=s.x[0].float().reshape(-1,c).mean(0); s.inv=1/(s.x[0].float().reshape(-1,c).var(0,unbiased=False)+1e-5).sqrt()
        A=lambda t,d='float32':device.as_input('a',t,dtypes=d)
        s.X,s.DY,s.OUT=([A(t,dt) for t in ts] for ts in (s.x,s.dy,s.out))
        s.W,s.B,s.RM,s.RV,s.DW,s.DB,s.MEAN,s.INV=map(A,(s.w,s.b,s.rm,s.rv,s.dw,s.db,s.mean,s.inv))
def timed(replay,k,reps):
    for _ in range(3): replay()
    torch.cuda.synchronize(); best=[]
    for _ in range(3):
        a,e=torch.cuda.Event(enable_timing=True),torch.cuda.Event(enable_timing=True)
        a.record()
        for _ in range(reps): replay()
        e.record(); e.synchronize(); best.append(a.elapsed_time(e)*1e3/reps/k)
    return sorted(best)[1]
def ours(s,call,reps=6):
    c=capture(lambda st:[call(s,i,st) for i in range(s.k)])
    cs=torch.cuda.ExternalStream(c.stream.ptr)
    with torch.cuda.stream(cs): return timed(c.replay,s.k,reps)
def theirs(s,call,reps=6):
    st=torch.cuda.Stream()
    with torch.cuda.stream(st):
        for i in range(2): call(s,i)
    torch.cuda.synchronize()
    g=torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        keep=[call(s,i) for i in range(s.k)]
    return timed(g.replay,s.k,reps)
train=lambda s,i,st:f.vectorised(s.X[i],s.W,s.B,s.RM,s.RV,out=s.OUT[i],stream=st)
infer=lambda s,i,st:f.vectorised(s.X[i],s.W,s.B,s.RM,s.RV,training=False,out=s.OUT[i],stream=st)
back=lambda s,i,st:b.vectorised(s.DY[i],s.X[i],s.W,mean=s.MEAN,invstd=s.INV,out=s.OUT[i],dweight=s.DW,dbias=s.DB,stream=st)
old=lambda s,i,st:f.channel_each(s.X[i],s.W,s.B,s.RM,s.RV,out=s.OUT[i],stream=st)
cl=lambda t:t.permute(0,3,1,2)
def t_train(s,i): return F.batch_norm(cl(s.x[i]),s.rm,s.rv,s.w,s.b,True,.1,1e-5)
def t_infer(s,i): return F.batch_norm(cl(s.x[i]),s.rm,s.rv,s.w,s.b,False,.1,1e-5)
def off(call):
    def go(s,i):
        with torch.backends.cudnn.flags(enabled=False): return call(s,i)
    return go
def t_back(s,i): return torch.ops.aten.native_batch_norm_backward(cl(s.dy[i]),cl(s.x[i]),s.w,None,None,s.mean,s.inv,True,1e-5,[True]*3)
def cudnn_back(s):
    res=torch.ops.aten.cudnn_batch_norm(cl(s.x[0]),s.w,s.b,s.rm,s.rv,True,.1,1e-5)
    reserve=res[3]
    return lambda s,i:torch.ops.aten.cudnn_batch_norm_backward(cl(s.x[i]),cl(s.dy[i]),s.w,None,None,s.mean,s.inv,1e-5,reserve)
def attempt(fn):
    try: return fn()
    except Exception as e:
        say('   ', type(e).__name__, str(e)[:90]); return float('nan')
def table(shapes,dts):
    logs={}
    for dt in dts:
        for shape in shapes:
            s=Set(shape,dt); row=[]
            o=attempt(lambda:ours(s,train)); t=[attempt(lambda:theirs(s,t_train)),attempt(lambda:theirs(s,off(t_train)))]
            oi=attempt(lambda:ours(s,infer)); ti=[attempt(lambda:theirs(s,t_infer)),attempt(lambda:theirs(s,off(t_infer)))]
            ob=attempt(lambda:ours(s,back)); tb=[attempt(lambda:theirs(s,t_back)),attempt(lambda:theirs(s,cudnn_back(s)))]
            n=math.prod(shape)*(4 if dt=='float32' else 2)
            for what,me,lib,by in (('train',o,t,2),('infer',oi,ti,2),('back',ob,tb,3)):
                lib=[v for v in lib if v==v]
                r=min(lib)/me if lib else float('nan')
                logs.setdefault((dt,what),[]).append(r)
                row.append(f'{what} {me:7.1f} us lib {"/".join(f"{v:.1f}" for v in lib)} x{r:.2f} {by*n/me/1e6:.2f}TB/s')
            say(dt,'x'.join(map(str,shape)),' | '.join(row))
    for key,v in logs.items(): say('MEAN',*key,f'{math.exp(sum(map(math.log,v))/len(v)):.2f} min {min(v):.2f}')
from pmpp.kernels.convolution_layer import implicit_channels_last as cv, convolution, definition
from pmpp.kernels.convolution_layer.definition import Layer
torch.backends.cudnn.allow_tf32=False; torch.backends.cudnn.benchmark=True
def L(c,h,k,r,s=1): return Layer(32,c,h,h,k,r,r,(s,s),(r//2,r//2))
LAYERS=[L(3,224,64,7,2),L(64,56,64,1),L(64,56,256,1),L(256,56,64,1),L(256,56,512,1,2),L(512,28,128,1),L(1024,14,256,1),L(2048,7,512,1),L(64,56,64,3),L(128,56,128,3,2),L(128,28,128,3),L(256,14,256,3),L(512,7,512,3)]
def conv_check():
    bad=0
    for name,args in cv.inputs().items():
        ref,tol=cv.reference(*args),cv.tolerance(*args)
        for r in cv.LADDER:
            got=device.to_host(r(*args)); ok=np.abs(got-ref)<=tol
            if not ok.all(): bad+=1; say('WRONG conv',name,r.name,ok.mean())
    say('conv checked', 'all right' if not bad else f'{bad} WRONG')
def conv_table():
    logs=[]
    for a in LAYERS:
        s=lambda:0
        n=4*(a.n*a.c*a.h*a.w+math.prod(a.shape)); s.k=max(2,min(8,math.ceil(150e6/n)))
        s.x=[torch.randn((a.n,a.h,a.w,a.c),device='cuda') for _ in range(s.k)]
        s.out=[torch.empty((a.n,a.p,a.q,a.k),device='cuda') for _ in range(s.k)]
        w=torch.randn((a.k,a.r,a.s,a.c),device='cuda')
        A=lambda t:device.as_input('a',t,dtypes='float32')
        X,O,W=list(map(A,s.x)),list(map(A,s.out)),A(w)
        o=[attempt(lambda:ours(s,lambda s,i,st:rung(X[i],W,None,a.stride,a.padding,out=O[i],stream=st),3)) for rung in (cv.element_each,cv.vectorised,cv.divided)]
        w4=w.permute(0,3,1,2)
        t=attempt(lambda:theirs(s,lambda s,i:F.conv2d(cl(s.x[i]),w4,None,a.stride,a.padding),3))
        got=s.out[0]; ref=F.conv2d(cl(s.x[0]),w4,None,a.stride,a.padding)
        err=(got-ref.permute(0,2,3,1)).abs().max().item()/ref.abs().max().item()
        cf=[t_.permute(0,3,1,2).contiguous() for t_ in s.x]; wf=w4.contiguous()
        tn=attempt(lambda:theirs(s,lambda s,i:F.conv2d(cf[i],wf,None,a.stride,a.padding),3))
        flops=a.cost.flops
        logs.append(t/o[2])
        say(f'{str(a):32} each {o[0]:7.1f} vec {o[1]:7.1f} div {o[2]:7.1f} us {flops/o[2]/1e6:5.1f} TF | torch NHWC {t:7.1f} x{t/o[2]:.2f} | NCHW {tn:7.1f} err {err:.1e}')
        del cf,s,X,O; torch.cuda.empty_cache()
    say('MEAN conv',f'{math.exp(sum(map(math.log,logs))/len(logs)):.2f} min {min(logs):.2f}')
def old_rejit(m,names,regs):
    lr=cuda.jit(device=True)(ORIG[f,'load_rows'].py_func); f.load_rows=lr; b.load_rows=lr
    for n in names: setattr(m,n,cuda.jit(max_registers=regs)(ORIG[m,n].py_func) if regs else cuda.jit(ORIG[m,n].py_func))
def parts_only(s,i,st):
    x=s.X[i].reshape(s.X[i].size); c=s.shape[-1]
    sh=f.Shape(math.prod(s.shape[:-1]),c,1); q=device.as_stream(st)
    from pmpp.kernels.normalisation.moments import Moments, Running, f0
    m=Moments(s.DW,s.DB)
    f.find_moments(x,sh,m,Running(*m,f0,*m,np.float32(1e-5),False),q)
def parts_alone(s,i,st):
    keep=f.merge_kernel
    class No:
        def __getitem__(self,_): return lambda *a:None
    f.merge_kernel=No()
    try: parts_only(s,i,st)
    finally: f.merge_kernel=keep
ORIG={(m,n):getattr(m,n) for m in (f,b) for n in ('parts_kernel','vectorised_kernel','load_rows','sums_kernel') if hasattr(m,n)}
def rejit(m,names,regs):
    for n in names: setattr(m,n,cuda.jit(max_registers=regs)(ORIG[m,n].py_func))
def variants(shapes=((32,112,112,64),(32,56,56,64),(32,28,28,256),(32,14,14,512))):
    sets={(dt,shape):Set(shape,dt) for dt in ('float32','float16') for shape in shapes}
    def show(tag,call):
        for dt in ('float32','float16'):
            say(tag,dt,' '.join(f'{attempt(lambda:ours(sets[dt,shape],call,4)):7.1f}' for shape in shapes))
    show('parts alone',parts_alone); show('parts and merge',parts_only); show('apply alone',infer)
    for tall,psm in ((512,1),(512,3),(512,4),(256,4),(256,2)):
        if f.TALL!=tall:
            f.TALL=b.TALL=tall; rejit(f,['parts_kernel'],64); rejit(b,['sums_kernel'],64)
        f.PARTS_PER_SM=b.PARTS_PER_SM=psm
        show(f'tall {tall} per sm {psm}: train',train); show(f'tall {tall} per sm {psm}: back',back)
    f.TALL=b.TALL=512; f.PARTS_PER_SM=b.PARTS_PER_SM=2
    rejit(f,['parts_kernel'],64); rejit(b,['sums_kernel'],64)
    for bsm in (4,6,12):
        f.BLOCKS_PER_SM=b.BLOCKS_PER_SM=bsm
        show(f'blocks per sm {bsm}: train',train); show(f'blocks per sm {bsm}: back',back)
    f.BLOCKS_PER_SM=b.BLOCKS_PER_SM=8
    b.PAIRS=32; rejit(b,['sums_kernel','vectorised_kernel'],128); show('pairs 32 regs 128: back',back)
from pmpp.kernels.convolution_layer import depthwise_channels_last as dw
def D(c,h,r=3,st=1,k=None,g=None): return Layer(32,c,h,h,k or c,r,r,(st,st),(r//2,r//2),groups=g or c)
DW=[D(32,112),D(96,112,3,2),D(144,56),D(192,28),D(384,14),D(576,14),D(960,7),D(240,28,5),D(672,14,5),D(96,56,7),D(64,56,k=128),D(128,28,g=16),D(128,28,g=4)]
def dw_table():
    bad=0
    for name,args in dw.inputs().items():
        ref,tol=dw.reference(*args),dw.tolerance(*args)
        for r in dw.LADDER:
            got=device.to_host(r(*args)); ok=np.abs(got-ref)<=tol
            if not ok.all(): bad+=1; say('WRONG dw',name,r.name,ok.mean())
    say('dw checked', 'all right' if not bad else f'{bad} WRONG')
    logs=[]
    for a in DW:
        s=lambda:0
        n=4*(a.n*a.c*a.h*a.w+math.prod(a.shape)); s.k=max(2,min(8,math.ceil(150e6/n)))
        s.x=[torch.randn((a.n,a.h,a.w,a.c),device='cuda') for _ in range(s.k)]
        s.out=[torch.empty((a.n,a.p,a.q,a.k),device='cuda') for _ in range(s.k)]
        w=torch.randn((a.k,a.r,a.s,a.c//a.groups),device='cuda')
        A=lambda t:device.as_input('a',t,dtypes='float32')
        X,O,W=list(map(A,s.x)),list(map(A,s.out)),A(w)
        o=[attempt(lambda:ours(s,lambda s,i,st:rung(X[i],W,None,a.stride,a.padding,1,a.groups,out=O[i],stream=st),3)) for rung in (cv.divided,dw.output_each,dw.vectorised,dw.sliding)]
        keep=dw.sliding_kernel; dw.sliding_kernel=functools.lru_cache(lambda t,v:cuda.jit(max_registers=64)(keep(t,v).py_func))
        less=attempt(lambda:ours(s,lambda s,i,st:dw.sliding(X[i],W,None,a.stride,a.padding,1,a.groups,out=O[i],stream=st),3)); dw.sliding_kernel=keep
        w4=w.permute(0,3,1,2)
        t=attempt(lambda:theirs(s,lambda s,i:F.conv2d(cl(s.x[i]),w4,None,a.stride,a.padding,1,a.groups),3))
        got=s.out[0]; ref=F.conv2d(cl(s.x[0]),w4,None,a.stride,a.padding,1,a.groups)
        err=(got-ref.permute(0,2,3,1)).abs().max().item()/ref.abs().max().item()
        logs.append(t/o[3])
        say(f'{str(a):32} implicit {o[0]:7.1f} each {o[1]:7.1f} vec {o[2]:7.1f} slide {o[3]:7.1f} (64 regs {less:7.1f}) us {n/o[3]/1e6:5.2f} TB/s | torch NHWC {t:7.1f} x{t/o[3]:.2f} err {err:.1e}')
        del s,X,O; torch.cuda.empty_cache()
    say('MEAN dw',f'{math.exp(sum(map(math.log,logs[:10]))/10):.2f} min {min(logs[:10]):.2f}')
def matrices():
    from pmpp.kernels.normalisation import batchnorm, batchnorm_backward
    for dt in ('float32','float16'):
        for shape in ((65536,1024),(4096,256),(128,1000),(64,2048),(16384,64)):
            s=Set(shape,dt)
            row=[]
            for m,bm in ((batchnorm,batchnorm_backward),(f,b)):
                row+=[attempt(lambda:ours(s,lambda s,i,st:m.vectorised(s.X[i],s.W,s.B,s.RM,s.RV,out=s.OUT[i],stream=st))),
                      attempt(lambda:ours(s,lambda s,i,st:m.vectorised(s.X[i],s.W,s.B,s.RM,s.RV,training=False,out=s.OUT[i],stream=st))),
                      attempt(lambda:ours(s,lambda s,i,st:bm.vectorised(s.DY[i],s.X[i],s.W,mean=s.MEAN,invstd=s.INV,out=s.OUT[i],dweight=s.DW,dbias=s.DB,stream=st)))]
            t=[attempt(lambda:theirs(s,lambda s,i:F.batch_norm(s.x[i],s.rm,s.rv,s.w,s.b,tr,.1,1e-5))) for tr in (True,False)]
            t.append(attempt(lambda:theirs(s,lambda s,i:torch.ops.aten.native_batch_norm_backward(s.dy[i],s.x[i],s.w,None,None,s.mean,s.inv,True,1e-5,[True]*3))))
            say('matrix',dt,shape,'first/last/torch',' | '.join(f'{w} {a:.1f} {c:.1f} {d:.1f}' for w,a,c,d in zip(('train','infer','back'),row[:3],row[3:],t)))
if __name__=='__main__':
    check()
    table(SHAPES,['float32','float16'])
    dw_table(); variants(); matrices()
    say('done')
